"""Pages whose codes were fetched from a database, scored by the kernels of the embedded index.

`PageCache` keeps those of the newest commit, so that a process fetches only the documents that have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from anchorfold.quantization.codec import Coding
from anchorfold.retrieval.candidates import PROBES, Candidates
from anchorfold.retrieval.kernels import sum_gains
from anchorfold.retrieval.live_pages import LivePages
from anchorfold.retrieval.scan import Scanner
from anchorfold.storage.records import Version

MERGED = 2  # an earlier block is merged if it has at most this many times the pages of the later one
IdRanking = list[tuple[int, float]]  # page ids and scores, best first


@dataclass(eq=False)
class FetchedPages:
    """Coded vectors of some pages, as a part of `LivePages`.

    Attributes:
        identity: `(n,)` int64 ids of the pages.
        version: `(n,)` int64 ids of their document versions.
        page: `(n,)` int64 page numbers.
        kept: `(n,)` int64 numbers of vectors; 0 for pages that are no longer live.
        starts: `(n + 1,)` int64, the first vector of each page and the end.
        codes: `(V, row_bytes)` uint8.
        scales: `(V,)` float16; empty for floats.
    """

    identity: np.ndarray
    version: np.ndarray
    page: np.ndarray
    kept: np.ndarray
    starts: np.ndarray
    codes: np.ndarray
    scales: np.ndarray

    @classmethod
    def of(cls, rows: Iterable[tuple[int, int, int, bytes, bytes]], coding: Coding, vectors: int) -> Self:
        """Copy rows of (id, version id, page, codes, scales), with `vectors` vectors in total."""
        codes = np.empty((vectors, coding.row_bytes), np.uint8)
        scales = np.empty(0 if coding.is_float else vectors, np.float16)
        numbers, starts = list[tuple[int, int, int]](), [0]
        for identity, version, page, own, own_scales in rows:
            first, last = starts[-1], starts[-1] + len(own) // coding.row_bytes
            codes[first:last].reshape(-1)[:] = np.frombuffer(own, np.uint8)
            if len(scales):
                scales[first:last] = np.frombuffer(own_scales, np.float16)
            numbers.append((identity, version, page))
            starts.append(last)
        columns = np.array(numbers, np.int64).reshape(-1, 3)
        bounds = np.array(starts, np.int64)
        return cls(columns[:, 0], columns[:, 1], columns[:, 2], np.diff(bounds), bounds, codes, scales)

    def __len__(self) -> int:
        return len(self.identity)

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales."""
        return self.codes.nbytes + self.scales.nbytes

    def rows_of(self, row: int) -> slice:
        """Return the vectors of a page."""
        return slice(int(self.starts[row]), int(self.starts[row + 1]))

    def coded(self, rows: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return codes and scales of some vectors."""
        return self.codes[rows], self.scales[rows] if len(self.scales) else self.scales

    def verified(self, pages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all codes and scales; they were verified when they were fetched."""
        return self.codes, self.scales

    def without(self, versions: np.ndarray) -> Self:
        """Return these pages with those of some document versions marked as not live."""
        return replace(self, kept=np.where(np.isin(self.version, versions), 0, self.kept))

    @classmethod
    def merge(cls, blocks: Sequence[Self]) -> Self:
        """Return the live pages of several blocks as one."""
        chosen = [np.flatnonzero(block.kept) for block in blocks]
        rows = [np.repeat(block.kept > 0, np.diff(block.starts)) for block in blocks]

        def joined(name: str) -> np.ndarray:
            return np.concatenate([getattr(block, name)[at] for block, at in zip(blocks, chosen, strict=True)])

        kept = joined("kept")
        return cls(
            joined("identity"), joined("version"), joined("page"), kept, np.concatenate(([0], kept.cumsum())),
            np.concatenate([block.codes[at] for block, at in zip(blocks, rows, strict=True)]),
            np.concatenate([b.scales[at] if len(b.scales) else b.scales for b, at in zip(blocks, rows, strict=True)]),
        )  # fmt: skip

    def top_k(self, coding: Coding, queries: Sequence[Any], count: int) -> list[IdRanking]:
        """Return the best pages of each query as (id, score)."""
        live = LivePages(Version("", 0, ""), coding, {0: self}, np.unique(self.version))
        return [by_id(ranking, self.identity) for ranking in Scanner(live).best_pages(queries, live.rows, count)]


def by_id(ranking: Iterable[tuple[int, float]], identities: np.ndarray) -> IdRanking:
    """Return a ranking of rows as a ranking of page ids; ties are in ascending order of ids."""
    pages = [(int(identities[row]), score) for row, score in ranking]
    return sorted(pages, key=lambda page: (-page[1], page[0]))


class CachedPages:
    """All live pages of one commit.

    Args:
        version: the commit.
        coding: encoding of the vectors.
        blocks: pages, of which those with `kept` are live.
        states: state of each live document version by id; it changes when pages of a version are added or removed.
    """

    def __init__(
        self, version: Version, coding: Coding, blocks: Sequence[FetchedPages], states: Mapping[int, int]
    ) -> None:
        self.version, self.blocks, self.states = version, blocks, states
        live = np.fromiter(states, np.int64, len(states))
        self.live = LivePages(version, coding, dict(enumerate(blocks)), live)
        self.scanner = Scanner(self.live)

    @cached_property
    def identities(self) -> np.ndarray:
        """`(rows,)` page ids."""
        return np.concatenate([np.zeros(0, np.int64), *(block.identity for block in self.blocks)])

    @cached_property
    def _ordered(self) -> tuple[np.ndarray, np.ndarray]:
        rows = self.live.rows[np.argsort(self.identities[self.live.rows], kind="stable")]
        return self.identities[rows], rows

    def rows_of(self, identities: np.ndarray) -> np.ndarray:
        """Return the `(n,)` rows of pages, given by id; -1 for pages that are not live."""
        return positions(identities, *self._ordered)

    def top_k(
        self, queries: Sequence[Any], count: int, allowed: np.ndarray | None, exact: bool, candidates: int | None
    ) -> list[IdRanking]:
        """Return the best pages of each query as (id, score); `allowed` are the ids of pages that may be returned."""
        mask = None
        if allowed is not None:
            mask = np.zeros(len(self.live), bool)
            rows = self.rows_of(allowed)
            mask[rows[rows >= 0]] = True
        rankings = self.scanner.top_k(queries, count, mask, exact, candidates)
        return [by_id(ranking, self.identities) for ranking in rankings]


def positions(identities: np.ndarray, ordered: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the values of ids, `ordered` being all ids in ascending order; -1 for ids that are not among them."""
    if not len(ordered):
        return np.full(len(identities), -1)
    at = np.minimum(np.searchsorted(ordered, identities), len(ordered) - 1)
    return np.where(ordered[at] == identities, values[at], -1)


def refreshed(
    cached: CachedPages | None, version: Version, coding: Coding, states: Mapping[int, int],
    fetch: Callable[[Sequence[int]], FetchedPages], most_bytes: int,
) -> CachedPages:  # fmt: skip
    """Return the pages of a commit, of which only those of new or changed document versions are fetched.

    Args:
        cached: pages of another commit; None to fetch all.
        version: the commit.
        coding: encoding of the vectors.
        states: state of each live document version by id.
        fetch: returns the pages of some document versions.
        most_bytes: pages that are no longer live are removed from memory if all pages take more.
    """
    before = {} if cached is None else cached.states
    changed = [identity for identity, state in states.items() if before.get(identity) != state]
    outdated = [identity for identity, state in before.items() if states.get(identity) != state]
    blocks = [] if cached is None else list(cached.blocks)
    if outdated:
        gone = np.array(outdated)
        blocks = [block.without(gone) for block in blocks]
    if changed:
        blocks.append(fetch(changed))
    while len(blocks) > 1 and len(blocks[-2]) <= MERGED * len(blocks[-1]):
        blocks[-2:] = [FetchedPages.merge(blocks[-2:])]
    crowded = sum(block.nbytes for block in blocks) > most_bytes
    for at, block in enumerate(blocks):
        live = np.count_nonzero(block.kept)
        if 2 * live < len(block) or (crowded and live < len(block)):
            blocks[at] = FetchedPages.merge([block])
    return CachedPages(version, coding, [block for block in blocks if len(block)], states)


PostingLists = tuple[np.ndarray, np.ndarray]  # `(centroids + 1,)` int64 bounds of the lists, and uint16 positions


class ListedPages(Candidates):
    """Candidate selection among pages that are given by id.

    Args:
        count: number of pages.
        blocks: row of each page of a block of posting lists, -1 for pages that may not be returned. Pages in no block
            are always candidates.
        centroids: `(C, components)` float16 centroids.
        lists: returns the posting lists of every block, of at least the given centroids.
        probes: posting lists to probe per token.
    """

    def __init__(
        self, count: int, blocks: Sequence[np.ndarray], centroids: np.ndarray,
        lists: Callable[[np.ndarray], Iterable[PostingLists]], probes: int = PROBES,
    ) -> None:  # fmt: skip
        self._set_centroids(centroids, probes)
        self.count, self.blocks, self.posting_lists = count, blocks, lists
        unlisted = np.ones(count, bool)
        for rows in blocks:
            unlisted[rows[rows >= 0]] = False
        self.unlisted = np.flatnonzero(unlisted)

    def _gains(self, probed: np.ndarray, values: np.ndarray) -> np.ndarray:
        totals = np.zeros(self.count, np.float32)
        for rows, (bounds, pages) in zip(self.blocks, self.posting_lists(np.unique(probed)), strict=True):
            gains = sum_gains(bounds, pages, probed, values, len(rows))
            totals[rows[rows >= 0]] = gains[rows >= 0]
        return totals
