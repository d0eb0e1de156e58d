"""What a query costs elsewhere on the same pages: NumPy, faiss over all vectors, LanceDB's multivector search."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from anchorfold.index.embedded import EmbeddedStore
from anchorfold.index.store.snapshot import Snapshot
from benchmarks.scale import TOP, peak_memory, read_queries

PEERS = ("NumPy", "faiss flat", "LanceDB")
ROUNDS = 10
NEAREST = 2_000  # vectors that faiss gives for a token; pages beyond them count nothing for it


def vectors_of(snapshot: Snapshot) -> tuple[np.ndarray, np.ndarray]:
    """All vectors `(V, 128)` float32 of an index with 8 bits, and where each page begins."""
    parts, lengths = [], []
    for segment in snapshot.segments().values():
        parts.append(snapshot.settings.coding.decode(segment.codes, segment.scales))
        lengths.append(segment.kept)
    return np.concatenate(parts), np.concatenate(([0], np.concatenate(lengths).cumsum(dtype=np.int64)))


def numpy_search(vectors: np.ndarray, starts: np.ndarray, folder: Path) -> Callable[[np.ndarray], list[int]]:
    def search(query: np.ndarray) -> list[int]:
        best = np.maximum.reduceat(vectors @ query.T, starts[:-1], axis=0).sum(1)
        return np.argsort(-best)[:TOP].tolist()

    return search


def faiss_search(vectors: np.ndarray, starts: np.ndarray, folder: Path) -> Callable[[np.ndarray], list[int]]:
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))

    def search(query: np.ndarray) -> list[int]:
        scores, numbers = index.search(np.ascontiguousarray(query), NEAREST)
        totals = np.zeros(len(starts) - 1, np.float32)
        for some, pages in zip(scores, owner[numbers], strict=True):
            gain = np.zeros_like(totals)
            np.maximum.at(gain, pages, some - some[-1])
            totals += gain
        return np.argsort(-totals)[:TOP].tolist()

    return search


def lance_search(vectors: np.ndarray, starts: np.ndarray, folder: Path) -> Callable[[np.ndarray], list[int]]:
    from benchmarks.search import lance_table

    table = lance_table(vectors.astype(np.float16), starts, folder)

    def search(query: np.ndarray) -> list[int]:
        nearest = table.search(query.astype(np.float16), vector_column_name="vectors").distance_type("dot")
        return nearest.select(["page", "_distance"]).limit(TOP).to_arrow()["page"].to_pylist()

    return search


def measure(folder: str, peer: str) -> dict[str, float | str]:
    """Median seconds a query, and resident memory at the peak."""
    searches = dict(zip(PEERS, (numpy_search, faiss_search, lance_search), strict=True))
    vectors, starts = EmbeddedStore.open(Path(folder) / "8.index").read(vectors_of)
    search = searches[peer](vectors, starts, Path(folder))
    if peer != "NumPy":
        del vectors
    seconds = []
    for query in read_queries(Path(folder))[: ROUNDS + 1]:
        began = time.perf_counter()
        search(query)
        seconds.append(time.perf_counter() - began)
    return {
        "peer": peer,
        "pages": len(starts) - 1,
        "seconds": float(np.median(seconds[1:])),
        "megabytes": peak_memory(),
    }
