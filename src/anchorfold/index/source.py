"""Where an index gets encoded pages from: this process, or others that satisfy the same protocol.

The store's side (`ingest`) takes in what comes, in whatever order documents are read; it knows nothing of models.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from anchorfold.documents.content import FileIdentity
from anchorfold.documents.files import Document
from anchorfold.documents.rendering import (
    DocumentFinished,
    PageFailed,
    PageRendered,
    PagesCounted,
    Renderer,
    Request,
)
from anchorfold.index.encoding import PageBatches
from anchorfold.index.progress import WorkerProgress
from anchorfold.index.reading import TextReader
from anchorfold.index.store.records import PageText
from anchorfold.index.store.settings import IndexSettings
from anchorfold.page import EncodedPage

if TYPE_CHECKING:
    from anchorfold.backbones.encoder import PageEncoder
    from anchorfold.compressors import Compressor


@dataclass(frozen=True)
class PageEncoded:
    """Page `number` (from 0) of `total`, compressed, and a small WebP of it; `seconds` went into encoding it.

    `text` is what it says, None if the index keeps none.
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
class PageLeftOut:
    """Page `number` (from 0) was rendered and cannot be encoded; another run may try it again."""

    document: Document
    identity: FileIdentity
    number: int
    problem: str


PageEvent = PagesCounted | PageEncoded | PageLeftOut | PageFailed | DocumentFinished


class PageSource(Protocol):
    """Reads documents and encodes their pages."""

    @property
    def workers(self) -> Sequence[WorkerProgress]:
        """Who encodes, if there are several."""
        ...

    def events(self, requests: Sequence[Request], stop: Callable[[], bool]) -> Generator[PageEvent, None, None]:
        """What becomes of the pages of some documents; a document is finished after all of its pages.

        `stop` is asked now and then. When it says True, what is under way is still given, and nothing more.

        Raises:
            BrokenModelError: no page can be encoded.
        """
        ...


@dataclass(frozen=True)
class Recipe:
    """How the pages of an index are made, as another process needs to know it.

    `index` is its folder, for messages; `model` where the model is now (None: where the settings say), `load_options`
    what `anchorfold.load` takes beyond the settings, `batch_size` the pages a forward pass (None: the model's own).
    """

    index: str
    settings: IndexSettings
    model: str | None = None
    load_options: dict[str, Any] = field(default_factory=dict)
    batch_size: int | None = None


class SourceMaker(Protocol):
    """What `Index.add` takes as a cluster."""

    def source(self, recipe: Recipe) -> AbstractContextManager[PageSource]:
        """A source of pages made by a recipe, for the time of one run."""
        ...


class LocalSource:
    """Encodes in this process, with a renderer that runs ahead in another.

    Args:
        load: the encoder, and what makes pages smaller; called when there is a page to encode.
        reader: of the pages' text.
        batch_size: pages a forward pass; the model's own if None.
    """

    workers: Sequence[WorkerProgress] = ()

    def __init__(
        self, load: Callable[[], tuple[PageEncoder, Compressor]], reader: TextReader, batch_size: int | None = None
    ) -> None:
        self._load, self.reader, self._batch_size = load, reader, batch_size

    @cached_property
    def batches(self) -> PageBatches:
        """What encodes."""
        model, compressor = self._load()
        return PageBatches(model, compressor, self._batch_size or model.default_batch)

    def events(self, requests: Sequence[Request], stop: Callable[[], bool]) -> Generator[PageEvent, None, None]:
        """In the order of the requests. A batch may hold pages of several documents."""
        waiting: list[PageRendered | PageFailed | DocumentFinished] = []
        if not requests:
            return
        pixels, census = self.batches.model.page_pixels, [request.document for request in requests]
        with Renderer(requests, pixels, census=census) as renderer:
            for event in renderer:
                if isinstance(event, PagesCounted):
                    yield event
                    continue
                waiting.append(event)
                pages = sum(isinstance(e, PageRendered) for e in waiting)
                if pages in (0, self.batches.batch_size):
                    yield from self._encoded(waiting)
                    waiting = []
                if stop():
                    break
            yield from self._encoded(waiting)

    def _encoded(self, events: Sequence[PageRendered | PageFailed | DocumentFinished]) -> list[PageEvent]:
        """The same events in the same order, with pages encoded."""
        rendered = [event for event in events if isinstance(event, PageRendered)]
        pages = iter(encode_rendered(self.batches, rendered, self.reader)) if rendered else iter(())
        return [next(pages) if isinstance(event, PageRendered) else event for event in events]


def encode_rendered(
    batches: PageBatches, rendered: Sequence[PageRendered], reader: TextReader
) -> list[PageEncoded | PageLeftOut]:
    """Some pages, at most a batch, encoded, and their text if that is wanted.

    Raises:
        BrokenModelError: the model cannot run, or several pages fail alike in a row.
    """
    began = time.monotonic()
    problems: dict[int, str] = {}
    names = [f"{event.document.name} page {event.number + 1}" for event in rendered]
    pages = batches.encode([event.image for event in rendered], names, problems.__setitem__)
    seconds = (time.monotonic() - began) / len(rendered)
    return [
        PageLeftOut(event.document, event.identity, event.number, problems[i])
        if page is None
        else PageEncoded(
            event.document,
            event.identity,
            event.number,
            event.total,
            page,
            event.thumbnail,
            seconds,
            reader.read(event),
        )
        for i, (event, page) in enumerate(zip(rendered, pages, strict=True))
    ]
