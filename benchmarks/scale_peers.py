"""Query time and memory of other libraries on the pages of `benchmarks.scale`."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.snapshot import Snapshot
from benchmarks.peers import PEERS
from benchmarks.scale import peak_memory, read_queries

ROUNDS = 10


def vectors_of(snapshot: Snapshot) -> tuple[np.ndarray, np.ndarray]:
    """Return all vectors `(V, 128)` of an 8-bit index as float32, and the offset of each page."""
    parts, lengths = [], []
    for segment in snapshot.segments().values():
        parts.append(snapshot.settings.coding.decode(segment.codes, segment.scales))
        lengths.append(segment.kept)
    return np.concatenate(parts), np.concatenate(([0], np.concatenate(lengths).cumsum(dtype=np.int64)))


def measure(folder: str, peer: str) -> dict[str, float | str]:
    """Return the median seconds per query and the peak resident memory."""
    vectors, starts = EmbeddedStore.open(Path(folder) / "8.index").read(vectors_of)
    search = PEERS[peer][1](vectors, starts, Path(folder))
    if peer not in ("NumPy", "torch"):
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
