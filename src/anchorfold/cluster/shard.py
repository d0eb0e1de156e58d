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
from types import SimpleNamespace
from typing import Any

import numpy as np

from anchorfold.index.live import LivePages
from anchorfold.index.scan import Scanner
from anchorfold.index.store.segment import Segment
from anchorfold.index.store.snapshot import Snapshot
from anchorfold.index.store.table import PageTable

VERSIONS = 2  # that a shard can answer for: queries are under way while a new one is taken up


@dataclass(frozen=True)
class ShardAnswer:
    """The best pages of a shard for each query as (number of the page in the whole index, score), best first.

    `pages` is how many it looked through, in `seconds`. Nothing holds if `version` is not the one that was asked for.
    """

    version: int
    rankings: Sequence[Sequence[tuple[int, float]]] = ()
    pages: int = 0
    seconds: float = field(default=0.0, compare=False)


class SegmentPart:
    """Some pages of a segment, from `first` to `last` (exclusive), copied into memory; else as a segment is."""

    def __init__(self, segment: Segment, first: int, last: int) -> None:
        self.first = first
        rows = slice(int(segment.starts[first]), int(segment.starts[last]))
        self.document, self.page, self.kept = (
            a[first:last].copy() for a in (segment.document, segment.page, segment.kept)
        )
        self.starts = segment.starts[first : last + 1] - segment.starts[first]
        self.codes, self.scales = (array.copy() for array in segment.coded(rows))

    def __len__(self) -> int:
        return len(self.document)

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
        self.table = PageTable.open(Path(folder))
        self._lock = threading.Lock()
        self._parts: dict[int, SegmentPart] = {}
        self._views: dict[int, tuple[LivePages, np.ndarray]] = {}

    def search(
        self, version: int, queries: Sequence[np.ndarray], top: int, allowed: np.ndarray | None = None
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

    def _view(self, version: int) -> tuple[LivePages, np.ndarray]:
        """The pages of a version, or of the newest, and what to add to their numbers in each segment."""
        with self._lock:
            if version not in self._views:
                view = self.table.snapshot(self._load)
                self._views[view[0].version] = view
                while len(self._views) > VERSIONS:
                    del self._views[min(self._views)]
            return self._views.get(version) or self._views[max(self._views)]

    def _load(self, snapshot: Snapshot) -> tuple[LivePages, np.ndarray]:
        segments = snapshot.segments()
        parts = {}
        for number, segment in segments.items():
            first, last = list(pairwise(part_edges(segment, self.shards).tolist()))[self.number]
            parts[number] = self._parts.get(number) or SegmentPart(segment, first, last)
        self._parts = parts
        partial: Any = SimpleNamespace(
            version=snapshot.version, state=snapshot.state, settings=snapshot.settings, segments=lambda: parts
        )
        live = LivePages(partial)
        whole = np.concatenate(([0], np.cumsum([len(segment) for segment in segments.values()], dtype=np.int64)))
        firsts = np.array([part.first for part in parts.values()], np.int64)
        return live, whole[:-1] + firsts - live.bases[:-1]
