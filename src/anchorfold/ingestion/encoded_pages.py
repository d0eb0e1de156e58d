"""Sources of encoded pages: this process, or other implementations of the same protocol.

The committer (`ingest`) accepts documents in any order and does not depend on models.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from anchorfold.documents.files import Document
from anchorfold.documents.formats import FileIdentity
from anchorfold.documents.render_events import DocumentFinished, PageFailed, PageRendered, RenderEvent, RenderRequest
from anchorfold.documents.renderer import Renderer
from anchorfold.errors import BrokenModelError
from anchorfold.ingestion.progress import WorkerProgress
from anchorfold.ingestion.text_extraction import PageTextReader
from anchorfold.page import EncodedPage
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.records import PageText

if TYPE_CHECKING:
    from anchorfold.backbones.encoder import Encoder
    from anchorfold.compressors import Compressor

_log = logging.getLogger(__name__)
MAX_EQUAL_FAILURES = 3  # consecutive equal errors that are attributed to the model


@dataclass(frozen=True)
class PageEncoded:
    """Compressed page `number` (from 0) of `total` with its WebP thumbnail; `seconds` is the encoding time.

    `text` is the page text, None if the index stores no text.
    """

    document: Document
    identity: FileIdentity
    number: int
    total: int
    page: EncodedPage
    thumbnail: bytes
    seconds: float = 0.0
    text: PageText | None = None


@dataclass(frozen=True)
class EncodingFailed:
    """Page `number` (from 0) was rendered but could not be encoded; a later run retries it."""

    document: Document
    identity: FileIdentity
    number: int
    problem: str


PageEvent = PageEncoded | EncodingFailed | PageFailed | DocumentFinished


class PageSource(Protocol):
    """Reads documents and encodes their pages."""

    @property
    def workers(self) -> Sequence[WorkerProgress]:
        """Progress of each worker; empty without a worker pool."""
        ...

    def events(self, requests: Sequence[RenderRequest], stop: Callable[[], bool]) -> Generator[PageEvent, None, None]:
        """Yield the events of the requested documents; `DocumentFinished` follows all pages of its document.

        `stop` is polled. Once it returns True, only pages that are already in progress are yielded.

        Raises:
            BrokenModelError: no page can be encoded.
        """
        ...


@dataclass(frozen=True)
class EncodingJob:
    """Settings that another process needs to encode the pages of an index.

    `index` is the index folder, for messages; `model` overrides the model of the settings; `load_options` are further
    arguments of `anchorfold.load`; `batch_size` is the batch size in pages (None: the default of the model).
    """

    index: str
    settings: IndexSettings
    model: str | None = None
    load_options: dict[str, Any] = field(default_factory=dict)
    batch_size: int | None = None


class PageSourceFactory(Protocol):
    """Protocol of the `cluster` argument of `Index.add`."""

    def source(self, job: EncodingJob) -> AbstractContextManager[PageSource]:
        """Return a context manager with a page source for one run."""
        ...


class LocalPageSource:
    """Encodes pages in this process; a child process renders ahead.

    Args:
        load: returns the encoder and the compressor; called before the first page is encoded.
        reader: reader of page text.
        batch_size: batch size in pages; the default of the model if None.
    """

    workers: Sequence[WorkerProgress] = ()

    def __init__(
        self, load: Callable[[], tuple[Encoder, Compressor]], reader: PageTextReader, batch_size: int | None = None
    ) -> None:
        self._load, self.reader, self._batch_size = load, reader, batch_size

    @cached_property
    def batches(self) -> PageBatches:
        """Batch encoder, created on first use."""
        model, compressor = self._load()
        return PageBatches(model, compressor, self._batch_size or model.default_batch_size)

    def events(self, requests: Sequence[RenderRequest], stop: Callable[[], bool]) -> Generator[PageEvent, None, None]:
        """Yield events in the order of the requests. A batch may contain pages of several documents."""
        waiting: list[RenderEvent] = []
        if not requests:
            return
        with Renderer(requests, self.batches.model.page_pixels) as renderer:
            for event in renderer:
                waiting.append(event)
                pages = sum(isinstance(e, PageRendered) for e in waiting)
                if pages in (0, self.batches.batch_size):
                    yield from self._encoded(waiting)
                    waiting = []
                if stop():
                    break
            yield from self._encoded(waiting)

    def _encoded(self, events: Sequence[RenderEvent]) -> list[PageEvent]:
        """Return the events in the same order, with rendered pages encoded."""
        rendered = [event for event in events if isinstance(event, PageRendered)]
        pages = iter(encode_rendered(self.batches, rendered, self.reader)) if rendered else iter(())
        return [event if isinstance(event, PageFailed | DocumentFinished) else next(pages) for event in events]


class PageBatches:
    """Encodes images in batches, and one by one after a batch fails.

    Args:
        model: the encoder.
        compressor: the compressor of pages.
        batch_size: batch size in pages.
    """

    def __init__(self, model: Encoder, compressor: Compressor, batch_size: int) -> None:
        self.model, self.compressor, self.batch_size = model, compressor, batch_size
        self._failures: list[str] = []

    def encode(self, images: Sequence[Any], names: Sequence[str]) -> list[EncodedPage | str]:
        """Return the encoded pages, the reason for pages that cannot be encoded; `names` are for error messages.

        Raises:
            BrokenModelError: the model cannot run, or consecutive pages fail with the same error.
        """
        try:
            pages: list[EncodedPage | str] = list(self.model.encode_documents(images, self.compressor, self.batch_size))
        except (BrokenModelError, ValueError, OSError, RuntimeError) as error:
            if len(images) > 1:  # one page may be invalid, or the batch too large
                return [self.encode([image], [name])[0] for image, name in zip(images, names, strict=True)]
            if isinstance(error, BrokenModelError):
                raise
            _log.debug("%s cannot be encoded", names[0], exc_info=True)
            reason = str(error) or type(error).__name__
            self._failures.append(reason)
            if self._failures[-MAX_EQUAL_FAILURES:] == [reason] * MAX_EQUAL_FAILURES:
                raise BrokenModelError(
                    f"{MAX_EQUAL_FAILURES} pages in a row could not be encoded ({reason}): stopped at {names[0]}; fix "
                    "the model or its settings and run again."
                ) from error
            return [f"cannot be encoded ({reason})"]
        self._failures.clear()
        return pages


def encode_rendered(
    batches: PageBatches, rendered: Sequence[PageRendered], reader: PageTextReader
) -> list[PageEncoded | EncodingFailed]:
    """Encode at most one batch of pages, and read their text if the index stores text.

    Raises:
        BrokenModelError: the model cannot run, or consecutive pages fail with the same error.
    """
    began = time.monotonic()
    names = [f"{event.document.name} page {event.number + 1}" for event in rendered]
    pages = batches.encode([event.image for event in rendered], names)
    seconds = (time.monotonic() - began) / len(rendered)
    events: list[PageEncoded | EncodingFailed] = []
    for event, page in zip(rendered, pages, strict=True):
        document, identity, number = event.document, event.identity, event.number
        if isinstance(page, str):
            events.append(EncodingFailed(document, identity, number, page))
        else:
            text = reader.read(event)
            events.append(PageEncoded(document, identity, number, event.total, page, event.thumbnail, seconds, text))
    return events
