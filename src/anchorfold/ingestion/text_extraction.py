"""Extract page text, during encoding or later for stored pages without text."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from anchorfold.documents.files import Document
from anchorfold.documents.ocr import OcrEngine, require_ocr
from anchorfold.documents.render_events import DocumentFinished, PageRendered, RenderRequest
from anchorfold.documents.renderer import Renderer
from anchorfold.errors import MismatchError
from anchorfold.ingestion.progress import READING_TEXT, Progress
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.protocol import PageStore
from anchorfold.storage.records import PageText
from anchorfold.storage.text_search import cleaned

_log = logging.getLogger(__name__)
SMALL_PIXELS = 10_000  # per page without OCR, which does not use the page image
BATCH = 256  # texts per commit


def add_text(store: PageStore, text: bool | None, ocr: bool | None) -> None:
    """Enable text or OCR for an index; raise MismatchError if that would disable stored text."""
    settings = store.settings
    if (text is False and settings.text) or (ocr is False and settings.ocr):
        raise MismatchError(f"{store.location} keeps the text of its pages: leave that option out, or choose another folder.")  # fmt: skip  # noqa: E501
    if ocr:
        require_ocr()
    if (text and not settings.text) or (ocr and not settings.ocr):
        with store.writing():
            store.enable_text(bool(ocr) or store.settings.ocr)


class PageTextReader:
    """Reads the text of rendered pages according to the index settings.

    Args:
        settings: the index settings.
    """

    def __init__(self, settings: IndexSettings) -> None:
        self.enabled = settings.text
        self._ocr = OcrEngine() if settings.text and settings.ocr else None

    def read(self, page: PageRendered) -> PageText | None:
        """Return the text layer, or OCR text if the layer has no words; None if the index stores no text."""
        if not self.enabled:
            return None
        text = cleaned(page.text)
        if self._ocr is None or any(character.isalnum() for character in text):
            return PageText(text)
        return PageText(cleaned(self._ocr.read(page.image)), ocr=True)


def read_missing(
    store: PageStore,
    documents: Sequence[Document],
    pixels: Callable[[], int],
    stop: Callable[[], bool] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> int:
    """Read texts and thumbnails of stored pages that lack them, where the file is the one that was indexed.

    No page is encoded. The caller holds the writer lock.

    Args:
        store: the index.
        documents: files that may be read.
        pixels: number of pixels of a page for OCR; called if a page is read by OCR.
        stop: polled after every page.
        progress: called before the first page and after every page.

    Returns:
        The number of pages whose text was read.
    """
    settings = store.settings
    missing = store.incomplete_pages() if settings.text else {}
    if not missing:
        return 0
    wanted = {source: [page - 1 for page in pages] for source, (_, pages) in missing.items()}
    requests = [RenderRequest(d, pages=wanted[d.source], with_text=True) for d in documents if d.source in wanted]
    reader, count = PageTextReader(settings), 0
    texts: dict[str, dict[int, PageText]] = {}
    thumbnails: dict[str, dict[int, bytes]] = {}

    def flush() -> None:
        for source, pages in texts.items():
            store.put_texts(source, missing[source][0], pages, thumbnails[source])
        texts.clear()
        thumbnails.clear()

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
                source, text = event.document.source, reader.read(event)
                if event.identity.digest == missing[source][0] and text is not None:
                    texts.setdefault(source, {})[event.number + 1] = text
                    image = event.thumbnail if settings.thumbnails else b""
                    thumbnails.setdefault(source, {})[event.number + 1] = image
                    count += 1
                if sum(map(len, texts.values())) >= BATCH:
                    flush()
                state.pages += 1
                state.share = state.pages / total
                show(state)
        flush()
    _log.info("the text of %d pages was read again", count)
    if count == sum(len(pages) for _, pages in missing.values()):
        store.set_text_complete()
    return count
