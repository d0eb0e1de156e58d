"""Counts and sizes of an index, and the metadata that users see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np

from anchorfold.filters.values import BUILT_IN, FROM_FILE, Plain, Value, shown
from anchorfold.storage.file_errors import folder_bytes
from anchorfold.storage.filter_sql import column_sql, folder_of, kind_of, protected
from anchorfold.storage.records import DocumentVersion
from anchorfold.storage.snapshot import PAGES, Snapshot

FEW_VALUES = 20  # of a column that is a facet
NO_FACETS = ("document", "title", "page", "pages", "modified")


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
        >>> info.pages, info.model, round(info.vector_compression_ratio)
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
    def compression_ratio(self) -> float:
        """Compression ratio: bytes of the full index in float16 over all bytes on disk without thumbnails and text.

        A full index would need those as well.
        """
        rest = self.bytes - self.thumbnail_bytes - self.text_bytes
        return self.full_vector_bytes / rest if self.vector_bytes else 1.0

    @property
    def vector_compression_ratio(self) -> float:
        """Compression ratio of the vectors alone."""
        return self.full_vector_bytes / self.vector_bytes if self.vector_bytes else 1.0


def index_info(snapshot: Snapshot) -> IndexInfo:
    """Count one commit of an index."""
    s, live = snapshot.settings, snapshot.live_ids()
    provenance = sum(
        int(segment.column("provenance.length")[np.isin(segment.version, live)].sum(dtype=np.int64))
        for segment in snapshot.segments().values()
    )
    execute = snapshot.connection.execute
    pages, unreadable, vectors, full, thumbnails, texts = execute(
        "SELECT count(*) FILTER (WHERE vectors > 0), count(*) FILTER (WHERE vectors = 0), "
        "coalesce(sum(vectors), 0), coalesce(sum(full_vectors), 0), coalesce(sum(thumbnail_bytes), 0), "
        "coalesce(sum(text_bytes), 0) FROM pages JOIN versions ON versions.id = pages.version_id WHERE live"
    ).fetchone()
    (words,) = execute("SELECT coalesce(sum(length(block)), 0) FROM text_index_data").fetchone()
    (documents,) = execute(f"SELECT count(*) FROM versions v WHERE live AND {PAGES} > 0").fetchone()
    layers = s.layers or {"window": [0, 0], "steps": 0}
    return IndexInfo(
        documents=documents, pages=pages, vectors=vectors, full_vectors=full, bytes=folder_bytes(snapshot.folder),
        vector_bytes=vectors * s.coding.vector_bytes, provenance_bytes=provenance, thumbnail_bytes=thumbnails,
        text_bytes=texts + words, full_vector_bytes=full * s.dim * 2, unreadable_pages=unreadable, model=s.model,
        method=s.method,
        settings={
            "fingerprint": s.fingerprint, "dim": s.dim, "bits": s.bits, "window": list(layers["window"]),
            "steps": layers["steps"], "text": ("with OCR" if s.ocr else "yes") if s.text else "no", **s.options,
        },
        columns=snapshot.columns,
    )  # fmt: skip


@dataclass(frozen=True)
class Facet:
    """A column with few values: the number of documents with each, most frequent first; `missing` have none."""

    column: str
    type: str
    values: Mapping[Value, int]
    missing: int


def facets(snapshot: Snapshot, public: bool = False) -> list[Facet]:
    """Return columns with few values that distinguish documents, those given by users first."""
    result, types = [], snapshot.columns
    snapshot.verify_documents()
    with protected(snapshot.connection):
        for name in sorted(types, key=lambda name: name in BUILT_IN):
            if name in NO_FACETS:
                continue
            column = column_sql(name, public)
            query = f"SELECT {column.sql} AS value, count(*) FROM live_documents GROUP BY value"
            counts = dict(snapshot.connection.execute(query, column.parameters).fetchmany(FEW_VALUES + 2))
            missing = counts.pop(None, 0)
            if 0 < len(counts) <= FEW_VALUES and len(counts) + bool(missing) > 1:
                ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
                values = {shown(bool(v) if types[name] == "boolean" else v, types[name]): n for v, n in ranked}
                result.append(Facet(name, types[name], values, missing))
    return result


def shown_metadata(version: DocumentVersion, types: Mapping[str, str], public: bool = False) -> dict[str, Value]:
    """Return the metadata of a document besides its name, by column, as Python values."""
    name = version.public_name if public else version.name
    values: dict[str, Plain | None] = {
        "folder": folder_of(name),
        "kind": kind_of(version.name),
        "pages": version.pages,
        "modified": day_of(version.modified),
        **{column: version.metadata.get(column, version.file_metadata.get(column)) for column in FROM_FILE},
        **{column: version.metadata[column] for column in sorted(version.metadata) if column not in BUILT_IN},
    }
    return {
        column: shown(value, types[column]) for column, value in values.items() if value is not None and column in types
    }


def day_of(nanoseconds: int) -> str | None:
    """Return the day of a file's time, in UTC; None if it is unknown."""
    if nanoseconds <= 0:
        return None
    try:
        return datetime.fromtimestamp(nanoseconds / 1e9, UTC).date().isoformat()
    except (OverflowError, ValueError, OSError):
        return None
