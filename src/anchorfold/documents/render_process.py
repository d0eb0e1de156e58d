"""The renderer process as seen by its parent: started on demand, ended when it fails."""

from __future__ import annotations

import logging
import os
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from anchorfold.documents.limits import GIGABYTE, MEMORY_EXIT, default_memory
from anchorfold.documents.render_events import (
    DocumentFinished,
    DocumentOpened,
    RenderEvent,
    RenderRequest,
    select_pages,
)
from anchorfold.documents.render_messages import (
    InvalidMessageError,
    receive_message,
    receive_opened,
    receive_page,
    send,
)
from anchorfold.errors import AnchorFoldError, os_reason

# -P: modules in the current folder must not be imported.
COMMAND = [sys.executable, "-P", "-m", "anchorfold.documents.render_child"]
_log = logging.getLogger(__name__)
PAGE_SECONDS = 120.0
START_SECONDS = 60.0
UNSUPPORTED = "documents cannot be rendered on this system: Linux or macOS is required (on Windows, use WSL)."


class RendererFailedError(Exception):
    """The process crashed, hung or exceeded its memory limit; the message is the reason.

    `used` is whether the process had rendered other pages before, which may have caused the failure.
    """

    def __init__(self, reason: str, used: bool, timed_out: bool) -> None:
        super().__init__(reason)
        self.used, self.timed_out = used, timed_out


class RenderProcess:
    """A process that renders documents. Not thread-safe, except for `kill`.

    Args:
        memory: memory limit in bytes; a quarter of the machine's memory if None.
        seconds: time limit for opening a document and for each page.
    """

    def __init__(self, memory: int | None = None, seconds: float = PAGE_SECONDS) -> None:
        self.memory, self.seconds = memory or default_memory(), seconds
        self._served = 0  # pages and documents handled by the current process
        self._child: subprocess.Popen[bytes] | None = None
        self._folder: str | None = None  # temporary files of the process, which cannot remove them if it is killed

    def render(self, request: RenderRequest, pixels: int) -> Iterator[RenderEvent]:
        """Render pages with at most `pixels` pixels each.

        Yields:
            `DocumentOpened`, then `PageRendered` or `PageFailed` for each page, then `DocumentFinished`; only the last
            if the document cannot be opened.

        Raises:
            RendererFailedError: the process failed.
        """
        document = request.document
        stored = {digest: sorted(pages) for digest, pages in request.stored.items()}
        message = {
            "path": str(document.path), "pages": request.pages, "stored": stored, "limit": request.limit,
            "pixels": pixels, "with_image": request.with_image, "with_text": request.with_text,
            "words": request.words, "seconds": self.seconds,
        }  # fmt: skip
        with self._exchange(message):
            last: RenderEvent = (opened := receive_opened(self._output, document, pixels, self.seconds))
            if isinstance(opened, DocumentOpened):
                yield opened
                pages = select_pages(opened.total, opened.identity.digest, request.pages, stored)
                for number in pages[: request.limit]:
                    event = receive_page(self._output, opened, pixels, self.seconds)
                    if event.number != number:
                        raise InvalidMessageError
                    yield event
                    self._served += 1
                last = DocumentFinished(document, opened.identity, total=opened.total)
            self._served += 1
        yield last

    def kill(self) -> None:
        """End the process immediately, from any thread; a pending request raises RendererFailedError."""
        if (child := self._child) is not None:
            _kill_group(child)

    def close(self) -> int:
        """End the process and return its exit code, or minus the signal that ended it."""
        child, self._child, self._served = self._child, None, 0
        if child is None:
            return 0
        _kill_group(child)
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        code = child.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        return code

    @contextmanager
    def _exchange(self, message: dict[str, Any]) -> Iterator[None]:
        """Send a request; leaving the context early ends the process, whose pending messages would be misread."""
        if self._child is None or self._child.poll() is not None:
            self._start()
        try:
            assert self._child is not None
            assert self._child.stdin is not None
            send(self._child.stdin.fileno(), message, seconds=self.seconds)
            yield
        except (EOFError, OSError, InvalidMessageError) as error:
            used, timed_out = self._served > 0, isinstance(error, TimeoutError)
            raise RendererFailedError(self._end(error), used, timed_out) from error
        except BaseException:
            self.close()
            raise

    @property
    def _output(self) -> int:
        assert self._child is not None
        assert self._child.stdout is not None
        return self._child.stdout.fileno()

    def _start(self) -> None:
        if not hasattr(select, "poll"):
            raise AnchorFoldError(UNSUPPORTED)
        self.close()
        try:
            self._folder = tempfile.mkdtemp(prefix="anchorfold-")
            self._child = subprocess.Popen(
                [*COMMAND, str(self.memory)], bufsize=0, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # libraries print warnings about damaged files
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": self._folder},
            )  # fmt: skip
            assert self._child.stdin is not None
            os.set_blocking(self._child.stdin.fileno(), False)
            header, _ = receive_message(self._output, 0, START_SECONDS)
            if header != {"kind": "ready"}:
                raise InvalidMessageError
            _log.debug("renderer %s started with %.2f GB of memory", self._child.pid, self.memory / GIGABYTE)
        except (EOFError, OSError, InvalidMessageError) as error:
            self.close()
            if isinstance(error, OSError) and error.errno:  # an error of the system, not of the process
                raise AnchorFoldError(f"cannot start the renderer: {os_reason(error)}.") from error
            command = shlex.join([*COMMAND, str(self.memory)])
            raise AnchorFoldError(f"cannot start the renderer: run `{command}` to see the error.") from error

    def _end(self, error: Exception) -> str:
        """End the process and return the reason of its failure."""
        if isinstance(error, EOFError | BrokenPipeError) and self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(1.0)  # it is exiting: its exit code must not be replaced by our signal
        code = self.close()
        if isinstance(error, TimeoutError):
            return f"took longer than {self.seconds:.0f} seconds to render"
        if isinstance(error, InvalidMessageError):
            return "crashed the renderer (invalid message)"
        if code == MEMORY_EXIT:
            return f"needs more than {self.memory / GIGABYTE:.3g} GB to render"
        return f"crashed the renderer ({f'signal {-code}' if code < 0 else f'exit {code}'})"


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """End a renderer and the converters that it started: it is the leader of their process group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.kill()
