"""Rendering ahead of the encoder, in a separate process.

A damaged PDF may crash or block its renderer; this must lose one page, not the run. The process renders while the
encoder works, and a bounded queue between them limits memory.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from anchorfold.documents.formats import CHANGED, RENDER_PIXELS
from anchorfold.documents.render_events import (
    DocumentFinished,
    DocumentOpened,
    PageFailed,
    RenderEvent,
    RenderRequest,
    select_pages,
)
from anchorfold.documents.render_process import PAGE_SECONDS, RendererFailedError, RenderProcess

_log = logging.getLogger(__name__)
QUEUE_SIZE = 8  # rendered pages, about 6 MB each
LOST_SECONDS = 600.0  # time limit for unrenderable pages of one document: five that hang or a thousand that crash


class Renderer:
    """Iterator of the events of documents, rendered ahead in order. Use as a context manager.

    Args:
        requests: pages to render; iterated in another thread.
        pixels: maximum number of pixels per page.
        queue_size: maximum number of events that are rendered ahead.
        memory: memory limit of the renderer process in bytes; a quarter of the machine's memory if None.
        seconds: time limit per page.
    """

    def __init__(
        self,
        requests: Iterable[RenderRequest],
        pixels: int = RENDER_PIXELS,
        queue_size: int = QUEUE_SIZE,
        memory: int | None = None,
        seconds: float = PAGE_SECONDS,
    ) -> None:
        self.requests, self.pixels = requests, pixels
        self.process = RenderProcess(memory, seconds)
        self._queue: queue.Queue[RenderEvent | BaseException | None] = queue.Queue(queue_size)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="anchorfold-render", daemon=True)

    def __enter__(self) -> Renderer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        while self._thread.is_alive():
            self.process.kill()  # it may be rendering a page; the thread then closes it
            self._thread.join(0.1)

    def __iter__(self) -> Iterator[RenderEvent]:
        while (event := self._queue.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event

    def _run(self) -> None:
        try:
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

    def _put(self, event: RenderEvent | BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                return self._queue.put(event, timeout=0.2)
            except queue.Full:
                continue
        raise _StoppedError


def render_document(
    process: RenderProcess, request: RenderRequest, pixels: int, stopped: Callable[[], bool] = lambda: False
) -> Iterator[RenderEvent]:
    """Render a document and continue after failures of the process.

    A page that ends a used process is tried again by a new one, since earlier pages may have caused the failure. A page
    that ends a new process is lost. If lost pages take more than `LOST_SECONDS`, the rest of the document is skipped.

    Yields:
        `PageRendered` or `PageFailed` for each page, then `DocumentFinished`.
    """
    document, first, lost_seconds = request.document, None, 0.0
    pending: deque[int] = deque()
    while True:
        opened, began = None, time.monotonic()
        attempt = request if first is None else replace(request, pages=list(pending), limit=None)
        try:
            for event in process.render(attempt, pixels):
                if not isinstance(event, DocumentOpened):
                    if opened is not None and pending:
                        pending.popleft()
                    yield event
                    began = time.monotonic()
                    continue
                opened = event
                if first is None:
                    first = opened
                    pages = select_pages(first.total, first.identity.digest, request.pages, request.stored)
                    pending.extend(pages[: request.limit])
                elif first.identity.digest != opened.identity.digest:  # replaced while a new process started
                    yield DocumentFinished(document, first.identity, CHANGED, first.total)
                    return
            return
        except RendererFailedError as failure:
            if stopped():
                return
            page = pending[0] if opened is not None and pending else None
            _log.info("%s, page %s: %s", document.name, page, failure)
            lost_seconds += time.monotonic() - began
            identity, total = (first.identity, first.total) if first is not None else (None, 0)
            if not failure.used or failure.timed_out:
                if page is None or identity is None:
                    yield DocumentFinished(document, identity, str(failure), total)
                    return
                yield PageFailed(document, identity, pending.popleft(), total, str(failure))
            if first is not None and not pending:
                yield DocumentFinished(document, identity, None, total)
                return
            if lost_seconds > LOST_SECONDS:
                problem = f"skipped the rest: unrenderable pages took {lost_seconds / 60:.0f} minutes"
                yield DocumentFinished(document, identity, problem, total)
                return


class _StoppedError(Exception):
    """The consumer of events has stopped."""
