"""Page retrieval shared by the framework integrations: search results with text and page image."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anchorfold.explanation.text_lookup import page_text
from anchorfold.filters.values import as_json
from anchorfold.indexes.index import Index
from anchorfold.indexes.locations import Location
from anchorfold.server.service import IndexService, PageReference
from anchorfold.storage.hits import Mode


@dataclass(frozen=True)
class RetrievedPage:
    """A search result.

    Attributes:
        id: document name and page number.
        score: score of the page.
        text: text layer; empty if the page has none or the original is not available.
        image: JPEG in base64; None if images are disabled.
        metadata: columns of the document (dates as ISO text), `document`, `page` (from 1), `score` and `source`, the
            absolute path of the document.
    """

    id: str
    score: float
    text: str
    image: str | None
    metadata: dict[str, Any]


class PageRetriever:
    """Searches an index for pages; thread-safe.

    Args:
        index: index to search, or its path or URL.
        top_k: maximum pages per query.
        documents: restrict to these names, paths, folders or patterns.
        text: whether to extract text layers.
        pixels: longer side of page images in pixels; None for no images.
        where: SQL filter on columns.
        mode: visual, text or hybrid, as in `Index.search`.
    """

    def __init__(
        self, index: Index | Location, top_k: int = 5, documents: str | Sequence[str] | None = None, text: bool = True,
        pixels: int | None = 1000, where: str | None = None, mode: Mode | None = None,
    ) -> None:  # fmt: skip
        self.index = index if isinstance(index, Index) else Index.open(index)
        self.top_k, self.documents, self.text, self.pixels = top_k, documents, text, pixels
        self.where, self.mode = where, mode
        self._service = IndexService(self.index)

    def retrieve(self, query: str) -> list[RetrievedPage]:
        """Return the best pages, best first."""
        pages = []
        for hit in self.index.search(query, self.top_k, mode=self.mode, documents=self.documents, where=self.where):
            text = page_text(self.index, hit.source, hit.page) if self.text else None
            image = None
            if self.pixels is not None:
                reference = PageReference(hit.page_id, hit.source, hit.page, hit.document)
                image = base64.b64encode(self._service.image(reference, self.pixels)).decode()
            metadata = {name: as_json(value) for name, value in hit.metadata.items()}
            metadata |= {"document": hit.document, "page": hit.page, "score": hit.score, "source": hit.source}
            pages.append(RetrievedPage(f"{hit.document}#page={hit.page}", hit.score, text or "", image, metadata))
        return pages
