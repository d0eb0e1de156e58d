"""Indexes of invented pages for measuring: written into segments in bulk, without going through a model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from anchorfold.index.coding import Coding
from anchorfold.index.store.catalogue import Document, Patch
from anchorfold.index.store.columns import array_column, blob_columns, write_columns
from anchorfold.index.store.segment import NUMBERS
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.store.snapshot import segment_path
from anchorfold.index.store.table import PageTable

PAGES_A_DOCUMENT = 50


def new_table(folder: Path, dim: int, bits: int, model: str = "nano", fingerprint: str = "invented") -> PageTable:
    """An empty index without provenance and pictures."""
    settings = IndexSettings(model, fingerprint, dim, "anchorfold", {"ratio": 0.05}, bits=bits, provenance=False,
                             thumbnails=False)  # fmt: skip
    return PageTable.create(folder, settings)


def append_pages(table: PageTable, vectors: np.ndarray, lengths: np.ndarray, full: int = 1600) -> None:
    """One segment of pages `(V, d)` of so many vectors each, 50 pages a document, in one commit."""
    order = np.argsort(lengths, kind="stable")
    starts = np.concatenate(([0], lengths.cumsum()))
    if np.any(np.diff(order) < 0):
        vectors = np.concatenate([vectors[starts[i] : starts[i + 1]] for i in order])
    state, pages = table.state, len(lengths)
    owner = state.next_document + np.arange(pages) // PAGES_A_DOCUMENT
    names = {int(n): f"{n}.pdf" for n in np.unique(owner)}
    documents = {n: Document(f"/d/{name}", name, str(n), 1, 1, PAGES_A_DOCUMENT, True) for n, name in names.items()}
    codes, scales = Coding(state.settings.dim, state.settings.bits).encode(vectors)
    numbers = {"document": owner[order], "page": (np.arange(pages) % PAGES_A_DOCUMENT + 1)[order],
               "full": np.full(pages, full), "kept": lengths[order]}  # fmt: skip
    columns = [
        *(array_column(name, numbers[name].astype(np.uint32)) for name in NUMBERS),
        array_column("codes", codes, long=True), array_column("scales", scales, long=True),
        *(c for name in ("provenance", "thumbnail", "problem") for c in blob_columns(name, [b""] * pages)),
    ]  # fmt: skip
    number = state.next_segment
    entry = write_columns(segment_path(table.folder, number), pages, columns)
    table._commit(Patch(documents, {number: entry}))


def random_pages(pages: int, dim: int, low: int, high: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Random unit vectors `(V, d)` and the pages' lengths, ascending."""
    rng = np.random.default_rng(seed)
    lengths = np.sort(rng.integers(low, high + 1, pages))
    vectors = rng.standard_normal((int(lengths.sum()), dim), np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors, lengths
