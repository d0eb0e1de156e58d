"""All live pages of one commit, numbered through its vector files: what a visual search scans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Protocol

import numpy as np

from anchorfold.index.coding import Coding
from anchorfold.index.store.records import Version
from anchorfold.index.store.schema import PAGE_BITS
from anchorfold.index.store.snapshot import Snapshot


class VectorRows(Protocol):
    """The pages of a vector file, or of a part of one."""

    version: np.ndarray
    page: np.ndarray
    kept: np.ndarray
    starts: np.ndarray

    @property
    def codes(self) -> np.ndarray: ...  # noqa: D102
    @property
    def scales(self) -> np.ndarray: ...  # noqa: D102
    def __len__(self) -> int: ...
    def rows_of(self, row: int) -> slice: ...  # noqa: D102
    def coded(self, rows: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...  # noqa: D102


Block = tuple[
    VectorRows, int, int, int, int
]  # segment, its first row number, first row, last row (exclusive), vectors per page


class LivePages:
    """Rows of all vector files one after another; `allowed (rows,)` is true for live pages with vectors.

    Args:
        version: the commit.
        coding: how vectors are stored.
        segments: vector files by number.
        live: `(n,)` ids of live versions.
    """

    def __init__(self, version: Version, coding: Coding, segments: Mapping[int, VectorRows], live: np.ndarray) -> None:
        self.version, self.coding = version, coding
        self.segment_numbers, self.segments = list(segments), list(segments.values())
        self.bases = np.concatenate(([0], np.cumsum([len(s) for s in self.segments], dtype=np.int64)))
        self._most = max([0, int(live.max(initial=0)), *(int(s.version.max(initial=0)) for s in self.segments)])
        self.allowed = self.of_versions(live)
        self.numbers = sum(int(s.starts[-1]) for s in self.segments) * coding.dim  # components of a full scan

    @classmethod
    def of(cls, snapshot: Snapshot) -> LivePages:
        """The pages of a commit."""
        return cls(snapshot.version, snapshot.settings.coding, snapshot.segments(), snapshot.live_ids())

    def __len__(self) -> int:
        return int(self.bases[-1])

    def of_versions(self, versions: np.ndarray) -> np.ndarray:
        """`(rows,)` true for pages with vectors of some versions, by their ids."""
        chosen = np.zeros(self._most + 1, bool)
        chosen[versions[versions <= self._most]] = True
        rows = [chosen[s.version] & (s.kept > 0) for s in self.segments]
        return np.concatenate(rows) if rows else np.zeros(0, bool)

    def of_pages(self, identities: np.ndarray) -> np.ndarray:
        """`(rows,)` true for some pages, by their ids."""
        chosen = np.zeros(len(self), bool)
        rows = self.rows_of(identities)
        chosen[rows[rows >= 0]] = True
        return chosen

    def identities(self, rows: np.ndarray) -> np.ndarray:
        """`(n,)` page ids of some rows."""
        found: np.ndarray = self._identities()[0][rows]
        return found

    def rows_of(self, identities: np.ndarray) -> np.ndarray:
        """`(n,)` rows of some pages, by their ids; -1 for pages that are not live or have no vectors."""
        _, ordered, order = self._identities()
        if not len(ordered):
            return np.full(len(identities), -1)
        at = np.minimum(np.searchsorted(ordered, identities), len(ordered) - 1)
        return np.where(ordered[at] == identities, order[at], -1)

    def _identities(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Page ids by row; those of live pages in ascending order; and their rows."""
        cached: tuple[np.ndarray, np.ndarray, np.ndarray] | None = self.__dict__.get("_sorted")
        if cached is None:
            parts = [s.version.astype(np.int64) << PAGE_BITS | s.page.astype(np.int64) for s in self.segments]
            every = np.concatenate(parts) if parts else np.zeros(0, np.int64)
            rows = np.flatnonzero(self.allowed)
            rows = rows[np.argsort(every[rows], kind="stable")]
            cached = self.__dict__["_sorted"] = every, every[rows], rows
        return cached

    def locate(self, number: int) -> tuple[VectorRows, int]:
        """The vector file of a page, and its row there."""
        at = int(np.searchsorted(self.bases, number, side="right")) - 1
        return self.segments[at], number - int(self.bases[at])

    def blocks(self, limit: int) -> Iterator[Block]:
        """Runs of pages of equal length with at most `limit` vectors, or one page."""
        for base, segment in zip(self.bases.tolist(), self.segments, strict=False):
            for first, last, length in equal_blocks(segment.kept, limit):
                if length:
                    yield segment, base, first, last, length


def equal_blocks(lengths: np.ndarray, limit: int) -> Iterator[tuple[int, int, int]]:
    """Runs `(first, last, length)` of pages of equal length with at most `limit` vectors, or one page."""
    edges = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)] if len(lengths) else []
    for start, stop in pairwise(edges):
        length = int(lengths[start])
        step = max(1, limit // max(length, 1))
        for first in range(start, stop, step):
            yield first, min(first + step, stop), length
