"""What retrievers of other frameworks return: the pages that answer a query, with their text and their picture."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anchorfold.explain.page_text import text_of_page
from anchorfold.index import Index
from anchorfold.index.filters.values import as_json
from anchorfold.index.hits import Mode
from anchorfold.serve.library import Library, PageReference


@dataclass(frozen=True)
class RetrievedPage:
    """A page that answers a query.

    `text` is its text layer, empty if it has none or the original is not at hand; `image` a JPEG in base64, None if
    pictures are not wanted; `page` counts from 1, `source` is the document's absolute path; `known` is what else is
    known of the document, by column, with dates as ISO text.
    """

    document: str
    page: int
    score: float
    source: str
    text: str
    image: str | None
    known: Mapping[str, bool | int | float | str] = field(default_factory=dict)

    @property
    def metadata(self) -> dict[str, Any]:
        """All but text and image, what is known of the document included."""
        page = {"document": self.document, "page": self.page, "score": self.score, "source": self.source}
        return {**self.known, **page}


class PageRetriever:
    """Searches an index. Safe for threads.

    Args:
        index: where.
        top: pages a query.
        documents: only pages of these: names, paths, folders or patterns.
        text: read the pages' text layers.
        pixels: of the longer side of the pages' pictures; None for no pictures.
        where: only pages for which this SQL condition on their columns is true.
        mode: visual, text or hybrid, as for `Index.search`.
    """

    def __init__(
        self,
        index: Index,
        top: int = 5,
        documents: str | Sequence[str] | None = None,
        text: bool = True,
        pixels: int | None = 1000,
        where: str | None = None,
        mode: Mode | None = None,
    ) -> None:
        self.index, self.top, self.documents, self.text, self.pixels = index, top, documents, text, pixels
        self.where, self.mode = where, mode
        self._library = Library(index)

    def retrieve(self, query: str) -> list[RetrievedPage]:
        """The best pages, best first."""
        pages = []
        for hit in self.index.search(query, self.top, mode=self.mode, documents=self.documents, where=self.where):
            text = text_of_page(self.index, hit.source, hit.page) if self.text else None
            image = None
            if self.pixels is not None:
                picture = self._library.picture(
                    PageReference(hit.page_id, hit.source, hit.page, hit.document), self.pixels
                )
                image = base64.b64encode(picture).decode()
            known = {name: as_json(value) for name, value in hit.metadata.items()}
            pages.append(RetrievedPage(hit.document, hit.page, hit.score, hit.source, text or "", image, known))
        return pages
