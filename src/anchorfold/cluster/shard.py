"""A shard: searches a part of every segment of an index in the memory of one process.

Runs as a Ray actor that does not use Ray directly.
"""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from anchorfold.retrieval.live_pages import LivePages
from anchorfold.retrieval.scan import Scanner
from anchorfold.storage.records import Version
from anchorfold.storage.segment import Segment
from anchorfold.storage.snapshot import Snapshot
from anchorfold.storage.sqlite_store import SqliteStore

CACHED_VERSIONS = 2  # in memory: queries on the previous version may still be running when a new one is loaded


@dataclass(frozen=True)
class ShardResult:
    """Top pages of a shard for each query as (page number in the whole index, score), best first.

    `pages` is the number of scanned pages, `seconds` the duration. Invalid if `version` is not the requested one.
    """

    version: Version | None
    rankings: Sequence[Sequence[tuple[int, float]]] = ()
    pages: int = 0
    seconds: float = field(default=0.0, compare=False)


class SegmentPart:
    """Pages `first` to `last` (exclusive) of a segment, copied into memory, with the interface of a segment."""

    def __init__(self, segment: Segment, first: int, last: int) -> None:
        self.first = first
        rows = slice(int(segment.starts[first]), int(segment.starts[last]))
        self.version, self.page, self.kept = (
            a[first:last].copy() for a in (segment.version, segment.page, segment.kept)
        )
        self.starts = segment.starts[first : last + 1] - segment.starts[first]
        self.codes, self.scales = (array.copy() for array in segment.coded(rows))

    def __len__(self) -> int:
        return len(self.version)

    def rows_of(self, row: int) -> slice:
        """Return the rows of the vectors of a page."""
        return slice(self.starts[row], self.starts[row + 1])

    def coded(self, rows: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the codes and scales of the given rows."""
        return self.codes[rows], self.scales[rows] if len(self.scales) else self.scales

    def verified(self, pages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all codes and scales, which were verified when they were copied."""
        return self.codes, self.scales


def part_boundaries(segment: Segment, shards: int) -> np.ndarray:
    """Return the page boundaries `(shards + 1,)` that balance the number of vectors per shard."""
    targets = segment.starts[-1] * np.arange(1, shards) / shards
    return np.concatenate(([0], np.searchsorted(segment.starts[1:], targets), [len(segment)]))


class Shard:
    """Shard `number` (from 0) of an index.

    It contains one part of every segment: new pages are distributed evenly, and only new segments are loaded.

    Args:
        folder: the index folder.
        number: number of this shard.
        shards: number of shards.
    """

    def __init__(self, folder: str, number: int, shards: int) -> None:
        self.number, self.shards = number, shards
        self.store = SqliteStore.open(Path(folder))
        self._lock = threading.Lock()
        self._parts: dict[object, SegmentPart] = {}
        self._cached: dict[Version, tuple[LivePages, np.ndarray]] = {}

    def search(
        self, version: Version, queries: Sequence[np.ndarray], top_k: int, allowed: np.ndarray | None = None
    ) -> ShardResult:
        """Return the top pages of one version.

        Args:
            version: requested version.
            queries: query vectors, `(tokens, d)` each.
            top_k: maximum pages per query.
            allowed: bit mask over the pages of the whole index (`numpy.packbits`); all pages if None.
        """
        live, offsets = self._live_pages(version)
        if live.version != version:
            return ShardResult(live.version)
        began, mask = time.perf_counter(), None
        if allowed is not None:
            whole = np.unpackbits(allowed).view(bool)
            firsts = live.bases[:-1] + offsets
            parts = zip(firsts.tolist(), live.segments, strict=True)
            mask = np.concatenate([whole[:0], *(whole[first : first + len(part)] for first, part in parts)])
        rankings = [
            [(self._global_number(live, offsets, number), score) for number, score in ranking]
            for ranking in Scanner(live).top_k(queries, top_k, mask, exact=True)
        ]
        return ShardResult(version, rankings, len(live), time.perf_counter() - began)

    def search_pickled(self, arguments: bytes) -> bytes:
        """Call `search` with pickled arguments: they are pickled once for all shards, by Ray once per shard."""
        return pickle.dumps(self.search(*pickle.loads(arguments)))

    @staticmethod
    def _global_number(live: LivePages, offsets: np.ndarray, number: int) -> int:
        at = int(np.searchsorted(live.bases, number, side="right")) - 1
        return number + int(offsets[at])

    def _live_pages(self, version: Version) -> tuple[LivePages, np.ndarray]:
        """Return the pages of a commit, or of the newest, and the page number offset of each vector file."""
        with self._lock:
            if version not in self._cached:
                loaded = self.store.read(self._load)
                self._cached.pop(loaded[0].version, None)
                self._cached[loaded[0].version] = loaded
                while len(self._cached) > CACHED_VERSIONS:
                    del self._cached[next(iter(self._cached))]
            return self._cached.get(version) or list(self._cached.values())[-1]

    def _load(self, snapshot: Snapshot) -> tuple[LivePages, np.ndarray]:
        segments = snapshot.segments()
        parts: dict[object, SegmentPart] = {}
        for number, segment in segments.items():
            first, last = list(pairwise(part_boundaries(segment, self.shards).tolist()))[self.number]
            key = (number, segment.entry)
            cached = self._parts.get(key)
            parts[key] = SegmentPart(segment, first, last) if cached is None else cached
        self._parts = parts
        by_number = dict(zip(segments, parts.values(), strict=True))
        live = LivePages(snapshot.version, snapshot.settings.coding, by_number, snapshot.live_ids())
        whole = np.concatenate(([0], np.cumsum([len(segment) for segment in segments.values()], dtype=np.int64)))
        firsts = np.array([part.first for part in parts.values()], np.int64)
        return live, whole[:-1] + firsts - live.bases[:-1]
