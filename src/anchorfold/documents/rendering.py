"""Rendering ahead of the encoder, in a process of its own.

A damaged PDF can crash or hang its renderer: that must cost a page, not the run. The child renders while the
encoder works; a bounded queue between them keeps memory flat however long the list of documents is.
"""

from __future__ import annotations

import os
import pickle
import queue
import select
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from PIL import Image

from anchorfold.documents.content import CHANGED, FileIdentity
from anchorfold.documents.files import Document
from anchorfold.documents.pages import RENDER_PIXELS

AHEAD = 8  # pages rendered and waiting, about 6 MB each
PAGE_SECONDS = 120.0
COUNT_SECONDS = 3.0  # for knowing how much is left; what is not counted by then is guessed
MAX_CRASHES = 3  # of one document


@dataclass(frozen=True)
class Request:
    """A document to render: all of its pages, or those numbered (from 0) in `pages`."""

    document: Document
    pages: Sequence[int] | None = None


@dataclass(frozen=True)
class RenderedPage:
    """Page `number` (from 0) of `total`; `image` is None and `problem` says why if it could not be rendered.

    `number` is None if the problem is the whole document's, and in the last event of a document, which has neither
    image nor problem. `thumbnail` is a small JPEG. `identity` is that of the bytes which the pages of this document
    were rendered from, the same in all of its events; None if the file could not be opened.
    """

    document: Document
    number: int | None
    total: int
    image: Image.Image | None = None
    thumbnail: bytes = b""
    problem: str | None = None
    identity: FileIdentity | None = None


class Renderer:
    """Renders documents in order, ahead of whoever iterates. Use as a context manager."""

    def __init__(
        self,
        requests: Iterable[Request],
        pixels: int = RENDER_PIXELS,
        ahead: int = AHEAD,
        census: Sequence[Document] = (),
    ) -> None:
        self.requests, self.pixels, self.census = requests, pixels, census
        self.counts: dict[Document, int] = {}  # pages of the documents of the census, as far as they were counted
        self._out: queue.Queue[RenderedPage | BaseException | None] = queue.Queue(ahead)
        self._stopped = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="anchorfold-render", daemon=True)

    def __enter__(self) -> Renderer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        # The child may be deep in a page: end it; the thread notices, and clears up what is its own.
        if (child := self._child) is not None:
            child.kill()
        self._thread.join()

    def __iter__(self) -> Iterator[RenderedPage]:
        while (event := self._out.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    def _run(self) -> None:
        try:
            if self.census:
                self._count()
            for request in self.requests:
                identity = None
                for event in self._render(request):
                    identity = event.identity
                    self._put(event)
                self._put(RenderedPage(request.document, None, 0, identity=identity))
                if self._stopped.is_set():
                    break
            self._put(None)
        except BaseException as error:
            self._put(error)
        finally:
            self._kill()

    def _put(self, event: RenderedPage | BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                return self._out.put(event, timeout=0.2)
            except queue.Full:
                continue

    def _count(self) -> None:
        try:
            for number, pages in self._ask(("count", [str(d.path) for d in self.census], COUNT_SECONDS)):
                self.counts[self.census[number]] = pages
        except (EOFError, TimeoutError, BrokenPipeError, ValueError) as error:
            self._died(error)

    def _render(self, request: Request) -> Iterator[RenderedPage]:
        document, wanted, total = request.document, request.pages, 0
        identity: FileIdentity | None = None
        for _ in range(MAX_CRASHES):
            at: int | None = None
            try:
                for message in self._ask(("render", str(document.path), wanted, self.pixels)):
                    kind, value = message[0], message[1:]
                    if kind == "open":
                        if identity is not None and identity.digest != value[1].digest:
                            # The renderer crashed, and meanwhile the file was replaced: the rest is another version.
                            self._kill()
                            yield RenderedPage(document, None, total, problem=CHANGED, identity=identity)
                            return
                        total, identity = value[0], identity or value[1]
                        wanted = list(range(total)) if wanted is None else [p for p in wanted if p < total]
                    elif kind == "start":
                        at = value[0]
                    elif kind == "page":
                        number, size, pixels, thumbnail = value
                        image = Image.frombytes("RGB", size, pixels)
                        yield RenderedPage(document, number, total, image, thumbnail, identity=identity)
                    elif kind == "bad page":
                        yield RenderedPage(document, value[0], total, problem=value[1], identity=identity)
                    elif kind == "bad document":
                        yield RenderedPage(document, None, 0, problem=value[0], identity=identity)
                return
            except (EOFError, TimeoutError, BrokenPipeError, ValueError) as error:
                if self._stopped.is_set():
                    return
                problem = self._died(error)
                yield RenderedPage(document, at, total, problem=problem, identity=identity)
                if at is None or wanted is None:
                    return
                wanted = [p for p in wanted if p > at]
        if wanted:
            problem = f"given up after {MAX_CRASHES} crashes of the renderer"
            yield RenderedPage(document, None, total, problem=problem, identity=identity)

    def _died(self, error: Exception) -> str:
        child = self._child
        self._kill()
        if isinstance(error, TimeoutError):
            return f"took longer than {PAGE_SECONDS:.0f} seconds to render"
        code = child.wait() if child is not None else 0
        return f"crashed the renderer ({f'signal {-code}' if code < 0 else f'exit {code}'})"

    def _ask(self, request: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        if self._child is None or self._child.poll() is not None:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "anchorfold.documents.render_child"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
                bufsize=0,  # what a buffer had swallowed, select would wait for in vain
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        send(self._child.stdin, request)
        while True:
            message = receive(self._child.stdout, PAGE_SECONDS)
            if message == ("done",):
                return
            yield message

    def _kill(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            for stream in (self._child.stdin, self._child.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            self._child = None


def send(stream: Any, message: object) -> None:
    """Write one message: its length, then its bytes."""
    data = pickle.dumps(message, protocol=5)
    left = memoryview(struct.pack("<Q", len(data)) + data)
    while left:
        left = left[stream.write(left) :]
    stream.flush()


def receive(stream: Any, seconds: float | None = None) -> Any:
    """Read one message; EOFError if the other side is gone, TimeoutError if it is silent for so long."""
    (length,) = struct.unpack("<Q", _exactly(stream, 8, seconds))
    return pickle.loads(_exactly(stream, length, seconds))


def _exactly(stream: Any, length: int, seconds: float | None) -> bytearray:
    data = bytearray(length)
    view, have = memoryview(data), 0
    while have < length:
        # Before every read: the other side may fall silent in the middle of a message.
        if seconds is not None and not select.select([stream], [], [], seconds)[0]:
            raise TimeoutError
        more = stream.readinto(view[have:])
        if not more:
            raise EOFError
        have += more
    return data
