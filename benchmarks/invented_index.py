"""Indexes of invented pages for measurements: vectors are written in bulk, without a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anchorfold.index.embedded import EmbeddedStore
from anchorfold.index.store.column_file import array_column, blob_columns, write_columns
from anchorfold.index.store.records import PageRow
from anchorfold.index.store.schema import page_id
from anchorfold.index.store.segment import NUMBERS, document_column
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.store.tables import write_document, write_version

PAGES_PER_DOCUMENT = 50


def new_store(folder: Path, dim: int, bits: int, model: str = "nano", fingerprint: str = "invented") -> EmbeddedStore:
    """An empty index without provenance, text and thumbnails."""
    settings = IndexSettings(model, fingerprint, dim, "anchorfold", {"ratio": 0.05}, bits=bits, provenance=False,
                             thumbnails=False)  # fmt: skip
    return EmbeddedStore.create(folder, settings)


def append_pages(store: EmbeddedStore, vectors: np.ndarray, lengths: np.ndarray, full: int = 1600) -> list[str]:
    """Add one vector file in one commit, 50 pages per document.

    Args:
        store: the index.
        vectors: `(V, d)` vectors of all pages.
        lengths: `(n,)` vectors per page.
        full: vectors per page before compression.

    Returns:
        The names of the new documents.
    """
    order = np.argsort(lengths, kind="stable")
    starts = np.concatenate(([0], lengths.cumsum()))
    if np.any(np.diff(order) < 0):
        vectors = np.concatenate([vectors[starts[i] : starts[i + 1]] for i in order])
    pages = len(lengths)
    names: list[str] = []
    with store.writing(), store.transaction() as connection:
        first = connection.execute("SELECT coalesce(max(id), 0) + 1 FROM documents").fetchone()[0]
        versions = []
        for number in range(first, first + -(-pages // PAGES_PER_DOCUMENT)):
            name = f"{number}.pdf"
            row = PageRow(f"/d/{name}", name, 1, PAGES_PER_DOCUMENT, str(number), 1, 1, True, None)
            document = write_document(connection, None, row.source, name, name, {})
            versions.append(write_version(connection, None, document, row))
            names.append(name)
        owner = np.array(versions)[np.arange(pages) // PAGES_PER_DOCUMENT]
        page = np.arange(pages) % PAGES_PER_DOCUMENT + 1
        codes, scales = store.settings.coding.encode(vectors)
        numbers = {"version": owner, "page": page, "full": np.full(pages, full), "kept": lengths}
        columns = [
            *(array_column(name, numbers[name][order].astype(np.uint32)) for name in NUMBERS),
            array_column("codes", codes, long=True),
            array_column("scales", scales, long=True),
            *blob_columns("provenance", [b""] * pages),
            document_column(store._snapshot(connection).versions_by_id(versions).values()),
        ]
        store.register(connection, lambda path, header: write_columns(path, pages, columns, header))
        connection.executemany(
            "INSERT INTO pages (id, vectors, full_vectors) VALUES (?, ?, ?)",
            (
                (page_id(version, number), kept, full)
                for version, number, kept in zip(owner.tolist(), page.tolist(), lengths.tolist(), strict=True)
            ),
        )
    return names


def random_pages(pages: int, dim: int, low: int, high: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random unit vectors `(V, d)` and the pages' lengths, ascending."""
    rng = np.random.default_rng(seed)
    lengths = np.sort(rng.integers(low, high + 1, pages))
    vectors = rng.standard_normal((int(lengths.sum()), dim), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors, lengths
