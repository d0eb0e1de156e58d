"""Pages of an index in Qdrant as other packages read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from anchorfold.databases.qdrant_engine import QdrantEngine, all_of, matches
from anchorfold.databases.qdrant_head import Head
from anchorfold.databases.qdrant_layout import PAGES, decode_bytes, page_version
from anchorfold.databases.qdrant_records import readable_pages
from anchorfold.errors import AnchorFoldError, StoreError
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.page_content import PageContent

EXPORT_BATCH = 16  # points with vectors per request


class QdrantPage(PageContent):
    """A page; its vectors are fetched when they are used."""

    def __init__(self, engine: QdrantEngine, settings: IndexSettings, point: Any) -> None:
        payload: Mapping[str, Any] = point.payload
        full, kept = payload["full_vectors"], payload["vectors"]
        super().__init__(settings, page_version(payload), payload["page"], full, kept)
        self.engine, self.payload, self.point = engine, payload, point

    @property
    def vectors(self) -> np.ndarray:
        """`(kept, dim)` float32."""
        vectors = (self.point.vector or {}).get(PAGES)
        if vectors is None and self.kept:
            records = self.engine.retrieve([str(self.point.id)], False, [PAGES])
            vectors = ((records[0].vector if records else None) or {}).get(PAGES)
            if vectors is None:
                raise StoreError(f"page {self.page} of {self.document} was replaced while it was read: try again.")
        return np.array(vectors, np.float32) if vectors else np.zeros((0, self.settings.dim), np.float32)

    @property
    def thumbnail(self) -> bytes:
        """A small WebP or JPEG, or nothing."""
        return decode_bytes(self.payload["thumbnail"])

    @property
    def problem(self) -> str | None:
        """Why the page could not be read."""
        problem: str | None = self.payload["problem"]
        return problem

    @property
    def text(self) -> str | None:
        """The text of the page; None if it is not stored."""
        text: str | None = self.payload["text"]
        return text

    def packed_provenance(self) -> bytes:
        """Return the result of `provenance.pack`; nothing if the index stores none."""
        return decode_bytes(self.payload["provenance"])

    def fault(self, problem: str) -> AnchorFoldError:
        """Return the error for a payload that is not what was written."""
        return StoreError(f"{self.engine.address.location}, {self.document}: {problem}.")


class QdrantCollection:
    """The live pages of one head, for exporters."""

    def __init__(self, engine: QdrantEngine, settings: IndexSettings, head: Head) -> None:
        self.engine, self.settings, self.head = engine, settings, head

    @property
    def location(self) -> str:
        """The URL without its key."""
        return self.engine.address.location

    def pages(self) -> Iterator[QdrantPage]:
        """All live pages that have vectors, ordered by id."""
        hidden = [matches("version", self.head.hidden)] if self.head.hidden else []
        allowed = all_of(*readable_pages(), none_of=hidden)
        for point in self.engine.scroll(allowed, vectors=[PAGES], batch=EXPORT_BATCH):
            yield QdrantPage(self.engine, self.settings, point)
