"""The text of pages on its way into the store: while they are encoded, or later for pages that lack it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import numpy as np

from anchorfold.documents.files import Document
from anchorfold.documents.ocr import PictureReader, require_ocr
from anchorfold.documents.rendering import DocumentFinished, PageRendered, Renderer, Request
from anchorfold.errors import MismatchError
from anchorfold.index.progress import READING_TEXT, Progress
from anchorfold.index.store.lock import writer_lock
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.store.snapshot import Snapshot
from anchorfold.index.store.table import PageTable
from anchorfold.index.store.texts import PAGE_BITS, PageText, row_number, row_numbers
from anchorfold.index.words import cleaned

_log = logging.getLogger(__name__)
SMALL_PIXELS = 10_000  # of pages whose picture is not looked at
BATCH = 256  # texts that are stored at once


def add_text(table: PageTable, text: bool | None, ocr: bool | None) -> None:
    """Make an index keep text, or text by OCR, from now on, if it does not; refuse to give up what it has."""
    settings = table.settings
    if (text is False and settings.text) or (ocr is False and settings.ocr):
        raise MismatchError(f"{table.folder} keeps the text of its pages: leave that option out, or choose another folder.")  # fmt: skip  # noqa: E501
    if ocr:
        require_ocr()
    if (text and not settings.text) or (ocr and not settings.ocr):
        with writer_lock(table.folder, -1):
            table.refresh()
            table.keep_text(bool(ocr) or table.settings.ocr)


class TextReader:
    """Reads the text of rendered pages as an index wants it.

    Args:
        settings: of the index.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self.wanted = settings.text
        self._pictures = PictureReader() if settings.text and settings.ocr else None

    def read(self, page: PageRendered) -> PageText | None:
        """What a page says: its text layer, or what OCR makes of its picture if that has no word; None: not wanted."""
        if not self.wanted:
            return None
        text = cleaned(page.text)
        if self._pictures is None or any(character.isalnum() for character in text):
            return PageText(text)
        return PageText(cleaned(self._pictures.read(page.image)), ocr=True)


def pages_without_text(snapshot: Snapshot, stored: np.ndarray) -> dict[int, list[int]]:
    """Live pages (from 0) with vectors that have no row among `stored`, by the number of their document."""
    missing: dict[int, list[int]] = {}
    for segment in snapshot.segments().values():
        rows = row_numbers(segment.document, segment.page)
        for row in rows[(segment.kept > 0) & ~np.isin(rows, stored)].tolist():
            version = snapshot.state.documents.get(row >> PAGE_BITS)
            if version is not None and version.live:
                missing.setdefault(row >> PAGE_BITS, []).append((row & ((1 << PAGE_BITS) - 1)) - 1)
    return {number: sorted(pages) for number, pages in missing.items()}


def read_missing(
    table: PageTable,
    documents: Sequence[Document],
    pixels: Callable[[], int],
    stop: Callable[[], bool] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> int:
    """Read the text of stored pages that lack it, where the file is the one that was indexed; returns how many.

    No page is encoded for that. The caller holds the writer's lock.

    Args:
        table: the index.
        documents: files that may be read.
        pixels: of a page that OCR looks at; called if there is one.
        stop: asked after every page.
        progress: called before the first page and after every page.
    """
    settings, texts = table.settings, table.texts
    if not settings.text or texts.complete:
        return 0
    missing = pages_without_text(table, texts.numbers(settings.ocr))
    numbers = {(v.source, v.digest): n for n, v in table.state.documents.items() if n in missing}
    wanted = {source: missing[number] for (source, _), number in numbers.items()}
    requests = [Request(d, wanted=wanted[d.source], texts=True) for d in documents if d.source in wanted]
    reader, batch, count = TextReader(settings), dict[int, PageText](), 0
    state = Progress(of_documents=len(requests), stage=READING_TEXT)
    total = sum(len(wanted[request.document.source]) for request in requests)
    show = progress or (lambda _: None)
    if requests:
        show(state)
        with Renderer(requests, pixels() if settings.ocr else SMALL_PIXELS) as renderer:
            for event in renderer:
                if stop is not None and stop():
                    break
                if isinstance(event, DocumentFinished):
                    state.documents += 1
                if not isinstance(event, PageRendered):
                    continue
                state.current = event.document.name
                number, text = numbers.get((event.document.source, event.identity.digest)), reader.read(event)
                if number is not None and text is not None:
                    batch[row_number(number, event.number + 1)] = text
                    count += 1
                if len(batch) >= BATCH:
                    texts.put(batch)
                    batch = {}
                state.pages += 1
                state.share = state.pages / total
                show(state)
        texts.put(batch)
    _log.info("the text of %d pages was read again", count)
    if count == sum(map(len, missing.values())):
        texts.set_complete(True)
    return count
