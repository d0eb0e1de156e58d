"""MaxSim over all pages of an index, or over those that are worth it, and the best of them.

A small index is scanned with NumPy in the thread that asks, which needs no further import; a large one with torch on a
pool of threads. Whatever the way, the pages that are answered are scored once more, page by page in float32: the
scores shown are the same to the bit by every way.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from anchorfold.index.candidates import CANDIDATES, FEW_PAGES, Candidates
from anchorfold.index.coding import Coding
from anchorfold.index.live import Block, LivePages, VectorRows
from anchorfold.index.products import integer_maxima, integers_are_quick, numpy_maxima, torch_maxima
from anchorfold.index.threads import in_parallel, in_parallel_with_torch

FLOAT_NUMBERS = 1 << 19  # numbers of a block that becomes float32: it should stay in a cache of a core
CODE_NUMBERS = 1 << 21  # numbers of a block of integers: large enough that Python's share of the work does not show
RESCORED = 100  # pages that are scored again after a scan of integers, at least
SPARE = 5  # pages beyond the wanted ones that are scored again after a scan of floats: rounding may swap neighbours
SMALL = 1 << 22  # numbers of an index: below, NumPy is as quick as a pool
MEDIUM = 1 << 28  # below, NumPy is quicker than importing torch would be
SOME_NUMBERS = 1 << 20  # numbers of chosen pages that are widened at a time
FEW_JOBS = 4  # parts of so many numbers: below, one thread does them before others have begun
SCORES = 1 << 26  # scores of tokens that are held at a time
Way = Literal["numpy", "floats", "integers"]


class Scanner:
    """Scores queries against all live pages, or against candidates where there are any."""

    def __init__(self, live: LivePages, candidates: Candidates | None = None) -> None:
        self.live, self.candidates = live, candidates

    def way(self, exact: bool | None = None) -> Way:
        """How `scores` multiplies."""
        if self.live.numbers < (SMALL if "torch" in sys.modules else MEDIUM):
            return "numpy"
        return "integers" if not exact and integers_are_quick(self.live.coding) else "floats"

    def scores(self, queries: Sequence[Any], way: Way) -> np.ndarray:
        """`(queries, rows)` MaxSim; pages without vectors score minus infinity."""
        tokens, owner = flatten(queries, self.live.coding)
        best = np.full((len(tokens), len(self.live)), -np.inf, np.float32)
        if not len(tokens) or not len(self.live):
            return np.zeros((len(queries), len(self.live)), np.float32)
        coding = self.live.coding
        kernel = {"numpy": numpy_maxima, "floats": torch_maxima, "integers": integer_maxima}[way](coding, tokens)
        limit = max(64, (CODE_NUMBERS if way == "integers" else FLOAT_NUMBERS) // coding.dim)

        def work(block: Block) -> None:
            segment, base, first, last, length = block
            rows = slice(segment.starts[first], segment.starts[last])
            best[:, base + first : base + last] = kernel(segment.codes[rows], segment.scales[rows], length)

        for segment in self.live.segments:
            _ = segment.codes, segment.scales  # verified here: an error in a worker would come late
        if way == "numpy":
            for block in self.live.blocks(limit):
                work(block)
        else:
            in_parallel_with_torch(work, self.live.blocks(limit))
        sums = np.zeros((len(queries), len(self.live)), np.float32)
        for token, query in enumerate(owner):
            sums[query] += best[token]
        return sums

    def top(
        self, queries: Sequence[Any], count: int, allowed: np.ndarray | None = None, exact: bool | None = None,
        candidates: int | None = None,
    ) -> list[list[tuple[int, float]]]:  # fmt: skip
        """For each query its best pages as (number of the page, score), best first.

        Args:
            queries: `(tokens, d)` each, arrays or tensors.
            count: pages to return, at most.
            allowed: `(rows,)` true for pages that may be returned; all live ones if None.
            exact: score every page, and multiply floats; else candidates come first if there are any, and the scan
                multiplies what is quicker on this machine.
            candidates: how many pages to score then.
        """
        mask = self.live.allowed if allowed is None else allowed & self.live.allowed
        available = int(mask.sum())
        if not available:
            return [[] for _ in queries]
        if available <= FEW_PAGES and 2 * available < len(self.live):
            few = np.flatnonzero(mask)
            return [self.best_of_some(query, few, count) for query in queries]
        candidates = candidates or max(CANDIDATES, 4 * count)
        if self.candidates is None or exact or candidates >= available:
            return self._scanned(queries, count, mask, self.way(exact))
        answers = []
        for query in queries:
            pages = self.candidates.choose(turned(query, self.live.coding), mask, candidates)
            if len(pages) < min(count, available) and len(query):  # a query that is near to nothing
                answers += self._scanned([query], count, mask, self.way(exact))
            else:
                answers.append(self.best_of_some(query, pages, count))
        return answers

    def best_of_some(self, query: Any, pages: np.ndarray, count: int) -> list[tuple[int, float]]:
        """The best of some pages, by their numbers in ascending order."""
        if not len(query) or not len(pages):
            return []
        scores = self.scores_of_some(turned(query, self.live.coding), pages)
        best = pages[first_best(scores, min(len(pages), count + SPARE))]
        return best_of(self.rescored(query, best), best, count)

    def _scanned(self, queries: Sequence[Any], count: int, mask: np.ndarray, way: Way) -> list[list[tuple[int, float]]]:
        chosen = min(int(mask.sum()), max(RESCORED, 2 * count) if way == "integers" else count + SPARE)
        answers: list[list[tuple[int, float]]] = []
        for some in self._parts(queries):
            for query, row in zip(some, self.scores(some, way), strict=True):
                if not len(query):
                    answers.append([])
                    continue
                pages = first_best(np.where(mask, row, -np.inf), chosen)
                answers.append(best_of(self.rescored(query, pages), pages, count))
        return answers

    def _parts(self, queries: Sequence[Any]) -> Iterator[list[Any]]:
        """Queries in groups whose scores fit into memory."""
        part: list[Any] = []
        tokens = 0
        for query in queries:
            if part and (tokens + len(query)) * len(self.live) > SCORES:
                yield part
                part, tokens = [], 0
            part.append(query)
            tokens += len(query)
        if part:
            yield part

    def scores_of_some(self, tokens: np.ndarray, pages: np.ndarray) -> np.ndarray:
        """`(n,)` MaxSim of turned tokens and some pages that have vectors, ascending: many at a time."""
        coding, scores = self.live.coding, np.empty(len(pages), np.float32)

        def work(job: tuple[VectorRows, np.ndarray, int]) -> None:
            segment, some, at = job
            lengths = segment.kept[some].astype(np.int64)
            ends = lengths.cumsum()
            vectors = np.arange(ends[-1]) + np.repeat(segment.starts[some] - (ends - lengths), lengths)
            products = coding.products(tokens, *segment.coded(vectors))
            scores[at : at + len(some)] = np.maximum.reduceat(products, ends - lengths, axis=0).sum(1)

        jobs = list(self._jobs(pages))
        if len(jobs) < FEW_JOBS:
            for job in jobs:
                work(job)
        else:
            in_parallel(work, jobs)
        return scores

    def _jobs(self, pages: np.ndarray) -> Iterator[tuple[VectorRows, np.ndarray, int]]:
        """Some pages in parts that fit a cache: their segment, rows there, and where among the pages they begin."""
        edges = np.searchsorted(pages, self.live.bases)
        for segment, base, (start, stop) in zip(self.live.segments, self.live.bases, pairwise(edges), strict=False):
            rows = pages[start:stop] - base
            step = max(1, SOME_NUMBERS // max(1, int(segment.kept[rows].max(initial=1)) * self.live.coding.dim))
            for first in range(0, len(rows), step):
                yield segment, rows[first : first + step], int(start) + first

    def rescored(self, query: Any, pages: np.ndarray) -> np.ndarray:
        """`(n,)` MaxSim of a query and some pages, page by page."""
        coding = self.live.coding
        tokens = turned(query, coding)
        scores = np.empty(len(pages), np.float32)
        for i, number in enumerate(pages.tolist()):
            segment, row = self.live.locate(number)
            scores[i] = coding.products(tokens, *segment.coded(segment.rows_of(row))).max(0).sum()
        return scores


def first_best(scores: np.ndarray, count: int) -> np.ndarray:
    """The `count` best pages in page order; of pages with equal scores the first."""
    if count >= len(scores):
        return np.arange(len(scores))
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above, equal = np.flatnonzero(scores > least), np.flatnonzero(scores == least)
    return np.sort(np.concatenate([above, equal[: count - len(above)]]))


def best_of(scores: np.ndarray, pages: np.ndarray, count: int) -> list[tuple[int, float]]:
    """The best pages and their scores; equal scores in page order."""
    order = np.argsort(-scores, kind="stable")[:count]
    return [(int(pages[i]), float(scores[i])) for i in order]


def turned(query: Any, coding: Coding) -> np.ndarray:
    """A query `(tokens, d)` as it is multiplied."""
    return coding.turn(np.asarray(query, np.float32).reshape(-1, coding.dim))


def flatten(queries: Sequence[Any], coding: Coding) -> tuple[np.ndarray, list[int]]:
    """All tokens of all queries below each other as they are multiplied, and whose they are."""
    arrays = [np.asarray(query, np.float32).reshape(-1, coding.dim) for query in queries]
    owner = [number for number, array in enumerate(arrays) for _ in range(len(array))]
    return coding.turn(np.concatenate([np.zeros((0, coding.dim), np.float32), *arrays])), owner
