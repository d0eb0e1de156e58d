"""Rendering ahead of the encoder, in a process of its own.

A damaged PDF can crash or hang its renderer: that must cost a page, not the run. The child renders while the
encoder works; a bounded queue between them keeps memory flat however long the list of documents is.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from PIL import Image

from anchorfold.documents.content import CHANGED, FileIdentity
from anchorfold.documents.files import Document
from anchorfold.documents.messages import DocumentProblem, Opened, PageProblem, Picture, Started, pages_to_render
from anchorfold.documents.pages import RENDER_PIXELS
from anchorfold.documents.render_process import PAGE_SECONDS, RendererFailedError, RenderProcess

_log = logging.getLogger(__name__)
AHEAD = 8  # pages rendered and waiting, about 6 MB each
COUNT_SECONDS = 3.0  # for knowing how much is left; what is not counted by then is guessed
LOST_SECONDS = 600.0  # on pages of one document that cannot be rendered: five that hang, or a thousand that crash


@dataclass(frozen=True)
class Request:
    """A document to render, without the pages (from 0) that are stored of the version with that digest.

    With `wanted`, these pages alone, stored or not; with `texts`, what they say as well.
    """

    document: Document
    stored: Mapping[str, Collection[int]] = field(default_factory=dict)
    wanted: Sequence[int] | None = None
    texts: bool = False


@dataclass(frozen=True)
class PagesCounted:
    """How many pages a document has, known before it is rendered."""

    document: Document
    pages: int


@dataclass(frozen=True)
class PageRendered:
    """Page `number` (from 0) of `total`, and a small WebP of it; `identity` is of the bytes that it was made from.

    `text` is what the file says that the page says, empty if it says nothing.
    """

    document: Document
    identity: FileIdentity
    number: int
    total: int
    image: Image.Image
    thumbnail: bytes
    text: str = ""


@dataclass(frozen=True)
class PageFailed:
    """Page `number` (from 0) of `total` cannot be rendered; `problem` says why."""

    document: Document
    identity: FileIdentity
    number: int
    total: int
    problem: str


@dataclass(frozen=True)
class DocumentFinished:
    """No more pages of a document will come; `problem` says why if not all did.

    `identity` is of the bytes that all of its pages were made from; None if the file could not be opened.
    """

    document: Document
    identity: FileIdentity | None
    problem: str | None = None


Event = PagesCounted | PageRendered | PageFailed | DocumentFinished


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
        self.process = RenderProcess(memory, seconds)
        self._out: queue.Queue[Event | BaseException | None] = queue.Queue(ahead)
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

    def __iter__(self) -> Iterator[Event]:
        while (event := self._out.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    def _run(self) -> None:
        try:
            self._count()
            for request in self.requests:
                for event in render_document(self.process, request, self.pixels, self._stopped.is_set):
                    self._put(event)
            self._put(None)
        except _StoppedError:
            pass
        except BaseException as error:
            with suppress(_StoppedError):
                self._put(error)
        finally:
            self.process.close()

    def _put(self, event: Event | BaseException | None) -> None:
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
                    self._put(PagesCounted(self.census[counted.number], counted.pages))


def render_document(
    process: RenderProcess, request: Request, pixels: int, stopped: Callable[[], bool] = lambda: False
) -> Iterator[Event]:
    """Every page once, whatever becomes of the process on the way, and the end of the document.

    A page that ends the process is tried by a new one, unless this was new: what came before may have done it.
    Then the page is lost, and the next one's turn comes. A document whose lost pages take too long is given up,
    with the pages after that.
    """
    state = _Progress(request)
    lost_seconds = 0.0
    while True:
        try:
            yield from _attempt(process, state, pixels)
            return
        except RendererFailedError as failure:
            if stopped():
                return
            _log.info("%s, page %s: %s", state.document.name, state.page, failure)
            lost_seconds += time.monotonic() - state.began
            if not failure.used or (failure.timed_out and not state.between_pages):
                if state.page is None:
                    yield state.finished(str(failure))
                    return
                yield state.failed(state.page, str(failure))
                state.finish_page()
            if state.wanted is not None and not state.wanted:
                yield state.finished()
                return
            if lost_seconds > LOST_SECONDS:
                minutes = lost_seconds / 60
                yield state.finished(f"given up: pages that cannot be rendered took {minutes:.0f} minutes")
                return


def _attempt(process: RenderProcess, state: _Progress, pixels: int) -> Iterator[Event]:
    """The events of the pages that are still wanted, and the end, unless the process fails."""
    state.page, state.between_pages, state.began = None, False, time.monotonic()
    wanted = state.request.wanted if state.wanted is None else list(state.wanted)
    problem: str | None = None
    path, stored = str(state.document.path), state.request.stored
    for answer in process.render(path, wanted, pixels, stored, thumbnails=True, texts=state.request.texts):
        match answer:
            case DocumentProblem():
                problem = answer.reason
            case Opened():
                if not state.open(answer):
                    # It was replaced while a new process started: the rest is of another version.
                    problem = CHANGED
                    break
            case Started():
                state.page, state.between_pages = answer.page, False
            case Picture():
                yield state.rendered(answer)
                state.finish_page()
            case PageProblem():
                yield state.failed(answer.page, answer.reason)
                state.finish_page()
    yield state.finished(problem)


@dataclass
class _Progress:
    """How far a document is: which pages are still wanted (None: not known yet), which is rendered since when."""

    request: Request
    wanted: deque[int] | None = None
    total: int = 0
    identity: FileIdentity | None = None
    page: int | None = None
    between_pages: bool = False
    began: float = 0.0

    @property
    def document(self) -> Document:
        return self.request.document

    def open(self, opened: Opened) -> bool:
        """Whether this is the version that was opened before, if any was."""
        if self.identity is None:
            self.total, self.identity = opened.pages, opened.identity
            wanted, stored = self.request.wanted, self.request.stored
            self.wanted = deque(pages_to_render(self.total, self.identity.digest, wanted, stored))
        return self.identity.digest == opened.identity.digest

    def finish_page(self) -> None:
        assert self.wanted is not None
        self.wanted.popleft()
        self.page, self.between_pages, self.began = None, True, time.monotonic()

    def rendered(self, picture: Picture) -> PageRendered:
        assert self.identity is not None
        return PageRendered(
            self.document, self.identity, picture.page, self.total, picture.image, picture.thumbnail, picture.text
        )

    def failed(self, page: int, problem: str) -> PageFailed:
        assert self.identity is not None
        return PageFailed(self.document, self.identity, page, self.total, problem)

    def finished(self, problem: str | None = None) -> DocumentFinished:
        return DocumentFinished(self.document, self.identity, problem)


class _StoppedError(Exception):
    """Nobody wants more events."""
