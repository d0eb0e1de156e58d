"""What an index holds, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from anchorfold.index.store.flat import CACHE
from anchorfold.index.store.folder import folder_bytes
from anchorfold.index.store.table import PageTable

BYTES = {"float16": 2, "float32": 4, "int8": 1}


@dataclass(frozen=True)
class IndexInfo:
    """What an index holds.

    `bytes` is the whole folder as `du -sb` counts it, `cache_bytes` the part of it that search made for itself and can
    make again, `vector_bytes` the stored vectors alone, `full_vector_bytes` those of the full index as float16.

    >>> info = index.info()
    >>> info.pages, info.model, round(info.times_smaller)
    (2, 'nano', 10)
    """

    documents: int
    pages: int
    vectors: int
    full_vectors: int
    bytes: int
    cache_bytes: int
    vector_bytes: int
    full_vector_bytes: int
    unreadable_pages: int
    model: str
    method: str
    settings: dict[str, Any]

    @property
    def times_smaller(self) -> float:
        """Bytes of the full index's vectors as float16 over those of the stored ones."""
        return self.full_vector_bytes / self.vector_bytes if self.vector_bytes else 1.0


def index_info(table: PageTable) -> IndexInfo:
    """Count one version of the table."""
    documents: set[str] = set()
    pages = vectors = full = unreadable = 0
    for batch in table.scan(["source", "kept", "full"]):
        for source, kept, before in zip(*(batch[c].to_pylist() for c in ("source", "kept", "full")), strict=True):
            documents.add(source)
            pages += kept > 0
            unreadable += kept == 0
            vectors, full = vectors + kept, full + before
    s = table.settings
    scale = 4 if s.dtype == "int8" else 0
    return IndexInfo(
        documents=len(documents), pages=pages, vectors=vectors, full_vectors=full, bytes=folder_bytes(table.folder),
        cache_bytes=folder_bytes(table.folder / CACHE),
        vector_bytes=vectors * (s.dim * BYTES[s.dtype] + scale), full_vector_bytes=full * s.dim * 2,
        unreadable_pages=unreadable, model=s.model, method=s.method,
        settings={
            "fingerprint": s.fingerprint, "dim": s.dim, "dtype": s.dtype, "window": list(s.window),
            "steps": s.steps, **s.options,
        },
    )  # fmt: skip
