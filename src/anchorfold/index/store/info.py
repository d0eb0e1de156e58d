"""Counts and sizes of an index."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.index.store.schema import PAGE_BITS
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.store.snapshot import Snapshot


@dataclass(frozen=True)
class IndexInfo:
    """Counts and sizes of an index.

    Attributes:
        documents: live documents.
        pages: searchable pages.
        vectors: stored vectors.
        full_vectors: vectors of the same pages before compression.
        bytes: the whole folder, as `du -sb` counts it.
        vector_bytes: codes and scales of the vectors.
        provenance_bytes: which patches the vectors come from.
        thumbnail_bytes: thumbnails.
        text_bytes: text of the pages with its full-text index.
        full_vector_bytes: the full index of the same pages in float16.
        unreadable_pages: pages that could not be read.
        model: name of the model.
        method: name of the compressor.
        settings: further settings.
        columns: types of the columns that filters may use.

    Examples:
        >>> info = index.info()
        >>> info.pages, info.model, round(info.vectors_times_smaller)
        (2, 'nano', 10)
    """

    documents: int
    pages: int
    vectors: int
    full_vectors: int
    bytes: int
    vector_bytes: int
    provenance_bytes: int
    thumbnail_bytes: int
    text_bytes: int
    full_vector_bytes: int
    unreadable_pages: int
    model: str
    method: str
    settings: dict[str, Any]
    columns: dict[str, str] = field(default_factory=dict)

    @property
    def times_smaller(self) -> float:
        """Compression ratio: bytes of the full index in float16 over all bytes on disk without thumbnails and text.

        A full index would need those as well.
        """
        rest = self.bytes - self.thumbnail_bytes - self.text_bytes
        return self.full_vector_bytes / rest if self.vector_bytes else 1.0

    @property
    def vectors_times_smaller(self) -> float:
        """Compression ratio of the vectors alone."""
        return self.full_vector_bytes / self.vector_bytes if self.vector_bytes else 1.0


def index_info(snapshot: Snapshot) -> IndexInfo:
    """Count one commit of an index."""
    s, live = snapshot.settings, snapshot.live_ids()
    provenance = sum(
        int(segment.column("provenance.length")[np.isin(segment.version, live)].sum(dtype=np.int64))
        for segment in snapshot.segments().values()
    )
    one = snapshot.connection.execute
    pages, unreadable, vectors, full, thumbnails, texts = one(
        "SELECT count(*) FILTER (WHERE vectors > 0), count(*) FILTER (WHERE vectors = 0), "
        "coalesce(sum(vectors), 0), coalesce(sum(full_vectors), 0), coalesce(sum(thumbnail_bytes), 0), "
        "coalesce(sum(text_bytes), 0) FROM pages JOIN versions ON versions.id = pages.version_id WHERE live"
    ).fetchone()
    (words,) = one("SELECT coalesce(sum(length(block)), 0) FROM text_index_data").fetchone()
    (documents,) = one(
        "SELECT count(*) FROM versions v WHERE live AND EXISTS "
        f"(SELECT 1 FROM pages p WHERE p.id >= v.id << {PAGE_BITS} AND p.id < (v.id + 1) << {PAGE_BITS})"
    ).fetchone()
    layers = s.layers or {"window": [0, 0], "steps": 0}
    return IndexInfo(
        documents=documents, pages=pages, vectors=vectors, full_vectors=full, bytes=folder_bytes(snapshot.folder),
        vector_bytes=vectors * s.coding.vector_bytes, provenance_bytes=provenance, thumbnail_bytes=thumbnails,
        text_bytes=texts + words, full_vector_bytes=full * s.dim * 2, unreadable_pages=unreadable, model=s.model,
        method=s.method,
        settings={
            "fingerprint": s.fingerprint, "dim": s.dim, "bits": s.bits, "window": list(layers["window"]),
            "steps": layers["steps"], "text": _text_setting(s), **s.options,
        },
        columns=snapshot.columns,
    )  # fmt: skip


def _text_setting(settings: IndexSettings) -> str:
    return ("with OCR" if settings.ocr else "yes") if settings.text else "no"


def folder_bytes(folder: Path) -> int:
    """Bytes of a folder and everything in it, as `du -sb` counts them; 0 if it does not exist."""
    total = 0
    for at, _, files in os.walk(folder):
        for path in (at, *(os.path.join(at, name) for name in files)):
            with suppress(FileNotFoundError):  # removed meanwhile
                total += os.lstat(path).st_size
    return total
