"""Top-k search by MaxSim over all pages of an index (exact scan) or over candidates.

A kernel (`kernels.maxsim`) scores the pages. The best ones are rescored in float32 in a fixed order of operations
(`kernels.rescore`), so that scores are bitwise identical for every kernel and every set of pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from anchorfold.retrieval.candidates import CANDIDATES, Candidates
from anchorfold.retrieval.combined_scans import CombinedScans
from anchorfold.retrieval.kernels import Tokens, maxsim, nth_largest, rescore
from anchorfold.retrieval.live_pages import LivePages

RESCORED = 250  # maximum pages to rescore beyond the requested number
ROUNDING = 1e-5  # bound of the relative error of float32 scores
SCORES = 1 << 26  # scores in memory at a time

Ranking = list[tuple[int, float]]  # row numbers and scores, best first


class Scanner:
    """MaxSim scoring of queries against all live pages, or against candidates if there are posting lists."""

    def __init__(self, live: LivePages, candidates: Candidates | None = None) -> None:
        self.live, self.candidates = live, candidates
        self._combined = CombinedScans()

    def top_k(
        self, queries: Sequence[Any], count: int, allowed: np.ndarray | None = None, exact: bool | None = None,
        candidates: int | None = None,
    ) -> list[Ranking]:  # fmt: skip
        """Return the best pages of each query as (row number, score), best first.

        Args:
            queries: arrays or tensors, `(tokens, d)` each.
            count: maximum pages per query.
            allowed: `(rows,)` mask of the pages that may be returned; all live pages if None.
            exact: score every page; otherwise select candidates if there are posting lists.
            candidates: number of candidates to score if not `exact`.
        """
        mask = self.live.allowed if allowed is None else allowed & self.live.allowed
        rows = self.live.rows if allowed is None else np.flatnonzero(mask)
        candidates = candidates or max(CANDIDATES, 4 * count)
        if self.candidates is None or exact or candidates >= len(rows):
            return self.best_pages(queries, rows, count)
        rankings = []
        for query in queries:
            tokens = Tokens.of([query], self.live.coding)
            pages = self.candidates.choose(tokens.values, mask, candidates)
            if len(pages) < min(count, len(rows)):  # too few pages in the probed posting lists
                pages = rows
            rankings += self.best_pages([query], pages, count, tokens)
        return rankings

    def best_pages(
        self, queries: Sequence[Any], rows: np.ndarray, count: int, tokens: Tokens | None = None
    ) -> list[Ranking]:
        """Return the best of the given rows, which must be in ascending order, for each query.

        Args:
            queries: arrays or tensors, `(tokens, d)` each.
            rows: `(n,)` row numbers of pages with vectors.
            count: maximum pages per query.
            tokens: rotated tokens of the queries, if they were computed before.
        """
        if not len(rows):
            return [[] for _ in queries]
        rankings: list[Ranking] = []
        step = max(1, SCORES // len(rows))
        for first in range(0, len(queries), step):
            rotated = tokens or Tokens.of(queries[first : first + step], self.live.coding)
            if rows is self.live.rows and len(rotated.starts) == 2:  # one query: other threads may scan the same rows
                scores, errors = self._combined.scores(rotated, lambda tokens: self.scores(tokens, rows))
            else:
                scores, errors = self.scores(rotated, rows)
            for query, (start, stop) in enumerate(pairwise(rotated.starts.tolist())):
                if start == stop:
                    rankings.append([])
                    continue
                pages = rows[best_positions(scores[query], count, float(errors[query]))]
                rankings.append(rank(self.rescore(rotated.values[start:stop], pages), pages, count))
        return rankings

    def scores(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return `(queries, n)` scores of rows in ascending order, and the bounds `(queries,)` of their error."""
        queries = len(tokens.starts) - 1
        scores, errors = np.empty((queries, len(rows)), np.float32), np.zeros(queries, np.float32)
        for segment, pages, at in self.live.by_segment(rows):
            codes, scales = segment.verified(pages)
            scores[:, at], bounds = maxsim(self.live.coding, codes, scales, segment.starts, pages, tokens)
            np.maximum(errors, bounds, out=errors)
        return scores, errors

    def rescore(self, tokens: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the `(n,)` scores of rotated tokens of one query for ascending rows; the same bits with any kernel."""
        scores = np.empty(len(rows), np.float32)
        for segment, pages, at in self.live.by_segment(rows):
            scores[at] = rescore(self.live.coding, *segment.verified(pages), segment.starts, pages, tokens)
        return scores


def best_positions(scores: np.ndarray, count: int, error: float) -> np.ndarray:
    """Return the ascending positions of the scores that may be among the `count` best; the first pages win ties.

    Args:
        scores: `(n,)` approximate scores.
        count: number of requested pages.
        error: bound of the absolute error of the scores.
    """
    if count >= len(scores):
        return np.arange(len(scores))
    last = nth_largest(scores, count)
    positions = np.flatnonzero(scores >= last - 2 * (error + ROUNDING * abs(last)))
    if len(positions) > count + RESCORED:
        positions = np.sort(positions[np.argsort(-scores[positions], kind="stable")[: count + RESCORED]])
    return positions


def rank(scores: np.ndarray, rows: np.ndarray, count: int) -> Ranking:
    """Return the best rows and their scores; ties are in page order."""
    order = np.argsort(-scores, kind="stable")[:count]
    return [(int(rows[i]), float(scores[i])) for i in order]
