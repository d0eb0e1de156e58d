"""Rendering ahead of the encoder, in a process of its own.

A damaged PDF can crash or hang its renderer: that must cost a page, not the run. The child renders while the
encoder works; a bounded queue between them keeps memory flat however long the list of documents is.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from PIL import Image

from anchorfold.documents.content import CHANGED, FileIdentity
from anchorfold.documents.files import Document
from anchorfold.documents.messages import DocumentProblem, Opened, PageProblem, Picture, Started
from anchorfold.documents.pages import RENDER_PIXELS
from anchorfold.documents.render_process import PAGE_SECONDS, RendererFailedError, RenderProcess

AHEAD = 8  # pages rendered and waiting, about 6 MB each
COUNT_SECONDS = 3.0  # for knowing how much is left; what is not counted by then is guessed
LOST_SECONDS = 600.0  # on pages of one document that cannot be rendered: five that hang, or a thousand that crash


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
    """Renders documents in order, ahead of whoever iterates. Use as a context manager.

    Args:
        requests: what to render; asked for in another thread.
        pixels: of a page, at most.
        ahead: pages that may wait.
        census: documents whose pages are counted first, as far as that is quick.
        memory: bytes that the renderer's process may use; a share of the machine's if None.
        seconds: for a page.
    """

    def __init__(
        self,
        requests: Iterable[Request],
        pixels: int = RENDER_PIXELS,
        ahead: int = AHEAD,
        census: Sequence[Document] = (),
        memory: int | None = None,
        seconds: float = PAGE_SECONDS,
    ) -> None:
        self.requests, self.pixels, self.census = requests, pixels, census
        self.counts: dict[Document, int] = {}  # pages of the documents of the census, as far as they were counted
        self.process = RenderProcess(memory, seconds)
        self._out: queue.Queue[RenderedPage | BaseException | None] = queue.Queue(ahead)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="anchorfold-render", daemon=True)

    def __enter__(self) -> Renderer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        # The process may be deep in a page: end it; the thread notices, and clears up what is its own.
        while self._thread.is_alive():
            self.process.kill()
            self._thread.join(0.1)

    def __iter__(self) -> Iterator[RenderedPage]:
        while (event := self._out.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    def _run(self) -> None:
        try:
            self._count()
            for request in self.requests:
                identity = None
                for event in self._render(request):
                    identity = event.identity
                    self._put(event)
                self._put(RenderedPage(request.document, None, 0, identity=identity))
            self._put(None)
        except _StoppedError:
            pass
        except BaseException as error:
            with suppress(_StoppedError):
                self._put(error)
        finally:
            self.process.close()

    def _put(self, event: RenderedPage | BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                return self._out.put(event, timeout=0.2)
            except queue.Full:
                continue
        raise _StoppedError

    def _count(self) -> None:
        if self.census:
            with suppress(RendererFailedError):  # rendering will say what is wrong
                for counted in self.process.count([str(d.path) for d in self.census], COUNT_SECONDS):
                    self.counts[self.census[counted.number]] = counted.pages

    def _render(self, request: Request) -> Iterator[RenderedPage]:
        """Every page once, whatever becomes of the process on the way.

        A page that ends the process is tried by a new one, unless this was new: what came before may have done it.
        Then the page is lost, and the next one's turn comes. A document whose lost pages take too long is given up,
        with the pages after that.
        """
        state = _Progress(request.document, None if request.pages is None else deque(request.pages))
        lost_seconds = 0.0
        while True:
            try:
                yield from self._attempt(state)
                return
            except RendererFailedError as failure:
                if self._stopped.is_set():
                    return
                lost_seconds += time.monotonic() - state.began
                if not failure.used or (failure.timed_out and not state.between_pages):
                    yield state.event(state.page, problem=str(failure))
                    if state.page is None:
                        return
                    state.finish_page()
                if state.wanted is not None and not state.wanted:
                    return
                if lost_seconds > LOST_SECONDS:
                    problem = f"given up: pages that cannot be rendered took {lost_seconds / 60:.0f} minutes"
                    yield state.event(None, problem=problem)
                    return

    def _attempt(self, state: _Progress) -> Iterator[RenderedPage]:
        """The events of the pages that are still wanted, until the process fails."""
        state.page, state.between_pages, state.began = None, False, time.monotonic()
        wanted = None if state.wanted is None else list(state.wanted)
        for answer in self.process.render(str(state.document.path), wanted, self.pixels, thumbnails=True):
            match answer:
                case DocumentProblem():
                    yield state.event(None, problem=answer.reason)
                case Opened():
                    if not state.open(answer):
                        # It was replaced while a new process started: the rest is of another version.
                        yield state.event(None, problem=CHANGED)
                        return
                case Started():
                    state.page, state.between_pages = answer.page, False
                case Picture():
                    yield state.event(answer.page, answer.image, answer.thumbnail)
                    state.finish_page()
                case PageProblem():
                    yield state.event(answer.page, problem=answer.reason)
                    state.finish_page()


@dataclass
class _Progress:
    """How far a document is: which pages are still wanted (None: all), and which is being rendered since when."""

    document: Document
    wanted: deque[int] | None
    total: int = 0
    identity: FileIdentity | None = None
    page: int | None = None
    between_pages: bool = False
    began: float = 0.0

    def open(self, opened: Opened) -> bool:
        """Whether this is the version that was opened before, if any was."""
        if self.identity is None:
            self.total, self.identity = opened.pages, opened.identity
            wanted = range(self.total) if self.wanted is None else self.wanted
            self.wanted = deque(p for p in wanted if p < self.total)
        return self.identity.digest == opened.identity.digest

    def finish_page(self) -> None:
        assert self.wanted is not None
        self.wanted.popleft()
        self.page, self.between_pages, self.began = None, True, time.monotonic()

    def event(
        self, number: int | None, image: Image.Image | None = None, thumbnail: bytes = b"", problem: str | None = None
    ) -> RenderedPage:
        return RenderedPage(self.document, number, self.total, image, thumbnail, problem, self.identity)


class _StoppedError(Exception):
    """Nobody wants more events."""
