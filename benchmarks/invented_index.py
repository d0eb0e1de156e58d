"""Synthetic indexes for benchmarks: vectors are written in bulk, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.column_file import write_columns
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.records import PageRow
from anchorfold.storage.rows import version_ids
from anchorfold.storage.schema import page_id
from anchorfold.storage.segment import array_columns

PAGES_PER_DOCUMENT = 50


def new_store(folder: Path, dim: int, bits: int, model: str = "nano", fingerprint: str = "invented") -> EmbeddedStore:
    """Create an empty index without provenance, text and thumbnails."""
    settings = IndexSettings(model, fingerprint, dim, "anchorfold", {"ratio": 0.05}, bits=bits, provenance=False,
                             thumbnails=False)  # fmt: skip
    return EmbeddedStore.create(folder, settings)


def append_pages(
    store: EmbeddedStore,
    vectors: np.ndarray,
    lengths: np.ndarray,
    full: int = 1600,
    texts: Sequence[str] = (),
    pages_per_document: int = PAGES_PER_DOCUMENT,
) -> list[str]:
    """Add one vector file in one commit.

    Args:
        store: the store of the index.
        vectors: `(V, d)` vectors of all pages.
        lengths: `(n,)` vectors per page.
        full: vectors per page before compression.
        texts: texts of all pages, or empty.
        pages_per_document: pages per document.

    Returns:
        The names of the new documents.
    """
    order = np.argsort(lengths, kind="stable")
    starts = np.concatenate(([0], lengths.cumsum()))
    if np.any(np.diff(order) < 0):
        vectors = np.concatenate([vectors[starts[i] : starts[i + 1]] for i in order])
    pages = len(lengths)
    with store.writing(), store.transaction() as snapshot:
        connection = snapshot.connection
        first = connection.execute("SELECT coalesce(max(id), 0) + 1 FROM documents").fetchone()[0]
        names = [f"{number}.pdf" for number in range(first, first + -(-pages // pages_per_document))]
        documents = [PageRow(f"/d/{name}", name, 1, pages_per_document, name, 1, 1, True, None) for name in names]
        versions = version_ids(connection, documents)
        owner = np.array(versions)[np.arange(pages) // pages_per_document]
        page = np.arange(pages) % pages_per_document + 1
        codes, scales = store.settings.coding.encode(vectors)
        numbers = [array[order] for array in (owner, page, np.full(pages, full), lengths)]
        known = snapshot.versions_by_id(versions).values()
        columns = array_columns(numbers, codes, scales, [b""] * pages, known)
        store.register(snapshot, lambda path, header: write_columns(path, pages, columns, header))
        connection.executemany(
            "INSERT INTO pages (id, vectors, full_vectors) VALUES (?, ?, ?)",
            (
                (page_id(version, number), kept, full)
                for version, number, kept in zip(owner.tolist(), page.tolist(), lengths.tolist(), strict=True)
            ),
        )
        connection.executemany(
            "INSERT INTO texts (page_id, text, ocr) VALUES (?, ?, 0)",
            ((page_id(v, n), text) for v, n, text in zip(owner.tolist(), page.tolist(), texts, strict=False)),
        )
    return names


def random_pages(pages: int, dim: int, low: int, high: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return random unit vectors `(V, d)` and ascending page lengths."""
    rng = np.random.default_rng(seed)
    lengths = np.sort(rng.integers(low, high + 1, pages))
    vectors = rng.standard_normal((int(lengths.sum()), dim), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors, lengths
