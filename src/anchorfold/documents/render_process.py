"""The renderer's process as its parent sees it: started when it is needed, ended when it misbehaves."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from anchorfold.documents.content import reason
from anchorfold.documents.limits import GIGABYTE, MEMORY_EXIT, default_memory
from anchorfold.documents.messages import (
    Answer,
    Counted,
    DocumentProblem,
    Done,
    GarbledMessageError,
    Opened,
    PageProblem,
    Picture,
    Ready,
    Started,
    pages_to_render,
    receive_answer,
    send,
)
from anchorfold.errors import AnchorFoldError

# -P: a file in the current folder that is called like a library is none.
COMMAND = [sys.executable, "-P", "-m", "anchorfold.documents.render_child"]
_log = logging.getLogger(__name__)
PAGE_SECONDS = 120.0
START_SECONDS = 60.0


class RendererFailedError(Exception):
    """The process crashed, hung, or needed too much memory; the message is the reason.

    `used` says whether the process had dealt with other pages before, which may have spoiled it.
    """

    def __init__(self, reason: str, used: bool, timed_out: bool) -> None:
        super().__init__(reason)
        self.used, self.timed_out = used, timed_out


class RenderProcess:
    """Renders documents in another process. Not for several threads at once, but any may `kill` it.

    Args:
        memory: bytes that the process may use.
        seconds: for opening a document, and for each page.
    """

    def __init__(self, memory: int | None = None, seconds: float = PAGE_SECONDS) -> None:
        self.memory, self.seconds = memory or default_memory(), seconds
        self._served = 0  # pages and documents that the process has dealt with
        self._child: subprocess.Popen[bytes] | None = None

    def render(
        self,
        path: str,
        wanted: Sequence[int] | None,
        pixels: int,
        stored: Mapping[str, Collection[int]] | None = None,
        thumbnails: bool = False,
        texts: bool = False,
    ) -> Iterator[Answer]:
        """Opened, then Started and Picture or PageProblem for each page; or a DocumentProblem alone.

        Args:
            path: the document.
            wanted: pages, from 0; all but the stored ones if None.
            pixels: of a page, at most.
            stored: for each digest the pages of that version that need not be rendered.
            thumbnails: make a small picture of each page as well.
            texts: read what each page says as well.
        """
        done = {digest: sorted(pages) for digest, pages in (stored or {}).items()}
        request = {
            "kind": "render", "path": path, "wanted": wanted, "stored": done, "pixels": pixels,
            "thumbnails": thumbnails, "texts": texts, "seconds": self.seconds,
        }  # fmt: skip
        with self._exchange(request):
            first = self._answer(pixels, self.seconds, Opened, DocumentProblem)
            yield first
            if isinstance(first, DocumentProblem):
                self._served += 1
            else:
                assert isinstance(first, Opened)
                for page in pages_to_render(first.pages, first.identity.digest, wanted, done):
                    yield self._answer(pixels, self.seconds, Started, page=page)
                    yield self._answer(pixels, self.seconds, Picture, PageProblem, page=page)
                    self._served += 1
            self._answer(pixels, self.seconds, Done)

    def count(self, paths: Sequence[str], seconds: float) -> Iterator[Counted]:
        """How many pages documents have, as far as that can be said in some seconds."""
        deadline, number = time.monotonic() + 2 * seconds, -1
        with self._exchange({"kind": "count", "paths": paths, "seconds": seconds}):
            while isinstance(answer := self._answer(0, deadline - time.monotonic(), Counted, Done), Counted):
                if not number < answer.number < len(paths):
                    raise GarbledMessageError
                number = answer.number
                self._served += 1
                yield answer

    def kill(self) -> None:
        """End the process at once, from any thread; whoever waits for its answer gets a RendererFailedError."""
        if (child := self._child) is not None:
            child.kill()

    def close(self) -> int:
        """End the process, and let go of what is held for it; its exit code, or minus the signal that ended it."""
        child, self._child, self._served = self._child, None, 0
        if child is None:
            return 0
        child.kill()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        return child.wait()

    @contextmanager
    def _exchange(self, request: dict[str, Any]) -> Iterator[None]:
        """One request with all of its answers; left early, it ends the process, whose next answer would fit nothing."""
        if self._child is None or self._child.poll() is not None:
            self._start()
        try:
            assert self._child is not None
            assert self._child.stdin is not None
            send(self._child.stdin.fileno(), request, seconds=self.seconds)
            yield
        except (EOFError, OSError, GarbledMessageError) as error:
            used, timed_out = self._served > 0, isinstance(error, TimeoutError)
            raise RendererFailedError(self._end(error), used, timed_out) from error
        except BaseException:
            self.close()
            raise

    def _answer(self, pixels: int, seconds: float, *kinds: type[Answer], page: int | None = None) -> Answer:
        """The next answer, which must be of one of these kinds, and for this page."""
        assert self._child is not None
        assert self._child.stdout is not None
        answer = receive_answer(self._child.stdout.fileno(), pixels, seconds)
        if not isinstance(answer, kinds) or getattr(answer, "page", None) != page:
            raise GarbledMessageError
        return answer

    def _start(self) -> None:
        self.close()
        try:
            self._child = subprocess.Popen(
                [*COMMAND, str(self.memory)], bufsize=0, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # libraries chatter about broken files; the answers say what is wrong
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            assert self._child.stdin is not None
            os.set_blocking(self._child.stdin.fileno(), False)
            self._answer(0, START_SECONDS, Ready)
            _log.debug("renderer %s started, %.2f GB for it", self._child.pid, self.memory / GIGABYTE)
        except (EOFError, OSError, GarbledMessageError) as error:
            self.close()
            if isinstance(error, OSError) and error.errno:  # the system's trouble, not the process's
                raise AnchorFoldError(f"the renderer does not start: {reason(error)}.") from error
            shown = shlex.join([*COMMAND, str(self.memory)])
            raise AnchorFoldError(f"the renderer does not start: {shown} says why.") from error

    def _end(self, error: Exception) -> str:
        """Why the process fails, in a few words; it is gone afterwards."""
        if isinstance(error, EOFError | BrokenPipeError) and self._child is not None:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(1.0)  # it is ending: what it says itself must come before our signal
        code = self.close()
        if isinstance(error, TimeoutError):
            return f"took longer than {self.seconds:.0f} seconds to render"
        if isinstance(error, GarbledMessageError):
            return "crashed the renderer (garbled message)"
        if code == MEMORY_EXIT:
            return f"needs more than {self.memory / GIGABYTE:.3g} GB to render"
        return f"crashed the renderer ({f'signal {-code}' if code < 0 else f'exit {code}'})"
