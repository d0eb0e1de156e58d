"""Live pages of one commit, numbered consecutively over its vector files; visual search scans them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import numpy as np

from anchorfold.quantization.codec import Coding
from anchorfold.storage.records import Version
from anchorfold.storage.schema import PAGE_BITS
from anchorfold.storage.snapshot import Snapshot


class VectorRows(Protocol):
    """Pages of a vector file or of a part of one."""

    version: np.ndarray
    page: np.ndarray
    kept: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int: ...
    def rows_of(self, row: int) -> slice: ...  # noqa: D102
    def coded(self, rows: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...  # noqa: D102
    def verified(self, pages: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...  # noqa: D102


class LivePages:
    """Concatenated rows of all vector files; `allowed` `(rows,)` is a mask of live pages with vectors.

    Args:
        version: version of the commit.
        coding: encoding of the stored vectors.
        segments: vector files by number.
        live: `(n,)` ids of live document versions.
    """

    def __init__(self, version: Version, coding: Coding, segments: Mapping[int, VectorRows], live: np.ndarray) -> None:
        self.version, self.coding = version, coding
        self.segment_numbers, self.segments = list(segments), list(segments.values())
        self.bases = np.concatenate(([0], np.cumsum([len(s) for s in self.segments], dtype=np.int64)))
        self._most = max([0, int(live.max(initial=0)), *(int(s.version.max(initial=0)) for s in self.segments)])
        self.allowed = self.of_versions(live)

    @classmethod
    def of(cls, snapshot: Snapshot) -> LivePages:
        """Return the live pages of a commit."""
        return cls(snapshot.version, snapshot.settings.coding, snapshot.segments(), snapshot.live_ids())

    def __len__(self) -> int:
        return int(self.bases[-1])

    @cached_property
    def rows(self) -> np.ndarray:
        """`(n,)` row numbers of live pages with vectors."""
        return np.flatnonzero(self.allowed)

    def of_versions(self, versions: np.ndarray) -> np.ndarray:
        """Return a `(rows,)` mask of the pages with vectors of document versions, given by id."""
        chosen = np.zeros(self._most + 1, bool)
        chosen[versions[versions <= self._most]] = True
        rows = [chosen[s.version] & (s.kept > 0) for s in self.segments]
        return np.concatenate(rows) if rows else np.zeros(0, bool)

    def of_pages(self, identities: np.ndarray) -> np.ndarray:
        """Return a `(rows,)` mask of pages, given by id."""
        chosen = np.zeros(len(self), bool)
        rows = self.rows_of(identities)
        chosen[rows[rows >= 0]] = True
        return chosen

    def identities(self, rows: np.ndarray) -> np.ndarray:
        """Return the `(n,)` page ids of rows."""
        identities: np.ndarray = self._identities()[0][rows]
        return identities

    def rows_of(self, identities: np.ndarray) -> np.ndarray:
        """Return the `(n,)` rows of pages, given by id; -1 for pages that are not live or have no vectors."""
        _, ordered, order = self._identities()
        if not len(ordered):
            return np.full(len(identities), -1)
        at = np.minimum(np.searchsorted(ordered, identities), len(ordered) - 1)
        return np.where(ordered[at] == identities, order[at], -1)

    def _identities(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the page ids by row, the sorted ids of live pages, and the rows of the latter."""
        cached: tuple[np.ndarray, np.ndarray, np.ndarray] | None = self.__dict__.get("_sorted")
        if cached is None:
            parts = [s.version.astype(np.int64) << PAGE_BITS | s.page.astype(np.int64) for s in self.segments]
            every = np.concatenate(parts) if parts else np.zeros(0, np.int64)
            rows = self.rows[np.argsort(every[self.rows], kind="stable")]
            cached = self.__dict__["_sorted"] = every, every[rows], rows
        return cached

    def by_segment(self, rows: np.ndarray) -> Iterator[tuple[VectorRows, np.ndarray, slice]]:
        """Yield the vector files of ascending rows, the rows in each file, and their positions in `rows`."""
        edges = np.searchsorted(rows, self.bases).tolist()
        for segment, base, (start, stop) in zip(self.segments, self.bases.tolist(), pairwise(edges), strict=False):
            if start < stop:
                yield segment, rows[start:stop] - base, slice(start, stop)

    def locate(self, number: int) -> tuple[VectorRows, int]:
        """Return the vector file of a page and its row in that file."""
        at = int(np.searchsorted(self.bases, number, side="right")) - 1
        return self.segments[at], number - int(self.bases[at])
