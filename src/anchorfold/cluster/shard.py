"""A shard: a part of every segment of an index in the memory of one process, and the best pages among them.

An actor of Ray that needs nothing of it itself.
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

from anchorfold.index.live import LivePages
from anchorfold.index.scan import Scanner
from anchorfold.index.store.records import Version
from anchorfold.index.store.segment import Segment
from anchorfold.index.store.snapshot import Snapshot
from anchorfold.index.store.sqlite_store import SqliteStore

VERSIONS = 2  # that a shard can answer for: queries are under way while a new one is taken up


@dataclass(frozen=True)
class ShardAnswer:
    """The best pages of a shard for each query as (number of the page in the whole index, score), best first.

    `pages` is how many it looked through, in `seconds`. Nothing holds if `version` is not the one that was asked for.
    """

    version: Version | None
    rankings: Sequence[Sequence[tuple[int, float]]] = ()
    pages: int = 0
    seconds: float = field(default=0.0, compare=False)


class SegmentPart:
    """Some pages of a segment, from `first` to `last` (exclusive), copied into memory; else as a segment is."""

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
        """Where the vectors of a page are."""
        return slice(self.starts[row], self.starts[row + 1])

    def coded(self, rows: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The codes and scales of some vectors."""
        return self.codes[rows], self.scales[rows] if len(self.scales) else self.scales


def part_edges(segment: Segment, shards: int) -> np.ndarray:
    """`(shards + 1,)` the first page of each shard's part, so that all hold about as many vectors."""
    wanted = segment.starts[-1] * np.arange(1, shards) / shards
    return np.concatenate(([0], np.searchsorted(segment.starts[1:], wanted), [len(segment)]))


class Shard:
    """Part `number` (from 0) of so many of an index.

    Of every segment it holds one part: what is added to an index is spread evenly, and nothing else is loaded anew.

    Args:
        folder: the index.
        number: which part.
        shards: how many there are.
    """

    def __init__(self, folder: str, number: int, shards: int) -> None:
        self.number, self.shards = number, shards
        self.store = SqliteStore.open(Path(folder))
        self._lock = threading.Lock()
        self._parts: dict[object, SegmentPart] = {}
        self._views: dict[Version, tuple[LivePages, np.ndarray]] = {}

    def search(
        self, version: Version, queries: Sequence[np.ndarray], top: int, allowed: np.ndarray | None = None
    ) -> ShardAnswer:
        """The best pages of one version.

        Args:
            version: the one that is asked for.
            queries: `(tokens, d)` each.
            top: pages a query.
            allowed: which pages of the whole index may be answered, as bits (`numpy.packbits`); all if None.
        """
        live, offsets = self._view(version)
        if live.version != version:
            return ShardAnswer(live.version)
        began, mask = time.perf_counter(), None
        if allowed is not None:
            whole = np.unpackbits(allowed).view(bool)
            firsts = live.bases[:-1] + offsets
            parts = zip(firsts.tolist(), live.segments, strict=True)
            mask = np.concatenate([whole[:0], *(whole[first : first + len(part)] for first, part in parts)])
        rankings = [
            [(self._whole_number(live, offsets, number), score) for number, score in ranking]
            for ranking in Scanner(live).top(queries, top, mask, exact=True)
        ]
        return ShardAnswer(version, rankings, len(live), time.perf_counter() - began)

    def answer(self, question: bytes) -> bytes:
        """What `search` says to pickled arguments, pickled: once for all shards, where Ray would do it for each."""
        return pickle.dumps(self.search(*pickle.loads(question)))

    @staticmethod
    def _whole_number(live: LivePages, offsets: np.ndarray, number: int) -> int:
        at = int(np.searchsorted(live.bases, number, side="right")) - 1
        return number + int(offsets[at])

    def _view(self, version: Version) -> tuple[LivePages, np.ndarray]:
        """The pages of a commit, or of the newest, and what to add to their numbers in each vector file."""
        with self._lock:
            if version not in self._views:
                view = self.store.read(self._load)
                self._views.pop(view[0].version, None)
                self._views[view[0].version] = view
                while len(self._views) > VERSIONS:
                    del self._views[next(iter(self._views))]
            return self._views.get(version) or list(self._views.values())[-1]

    def _load(self, snapshot: Snapshot) -> tuple[LivePages, np.ndarray]:
        segments = snapshot.segments()
        parts: dict[object, SegmentPart] = {}
        for number, segment in segments.items():
            first, last = list(pairwise(part_edges(segment, self.shards).tolist()))[self.number]
            key = (number, segment.entry)
            known = self._parts.get(key)
            parts[key] = SegmentPart(segment, first, last) if known is None else known
        self._parts = parts
        by_number = dict(zip(segments, parts.values(), strict=True))
        live = LivePages(snapshot.version, snapshot.settings.coding, by_number, snapshot.live_ids())
        whole = np.concatenate(([0], np.cumsum([len(segment) for segment in segments.values()], dtype=np.int64)))
        firsts = np.array([part.first for part in parts.values()], np.int64)
        return live, whole[:-1] + firsts - live.bases[:-1]
