"""MaxSim over all pages of an index, and the best of them.

A small index is scanned with NumPy in the thread that asks, which needs no further import; a large one with torch on a
pool of threads. Whatever the way, the pages that are answered are scored once more, page by page in float32: the
scores shown are the same to the bit by every way.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from anchorfold.index.live import Block, LivePages
from anchorfold.index.products import integer_maxima, integers_are_quick, numpy_maxima, torch_maxima

FLOAT_NUMBERS = 1 << 19  # numbers of a block that becomes float32: it should stay in a cache of a core
CODE_NUMBERS = 1 << 21  # numbers of a block of integers: large enough that Python's share of the work does not show
RESCORED = 100  # pages that are scored again after a scan of integers, at least
SPARE = 5  # pages beyond the wanted ones that are scored again after a scan of floats: rounding may swap neighbours
SMALL = 1 << 22  # numbers of an index: below, NumPy is as quick as a pool
MEDIUM = 1 << 28  # below, NumPy is quicker than importing torch would be
SCORES = 1 << 26  # scores of tokens that are held at a time
Way = Literal["numpy", "floats", "integers"]


class Scanner:
    """Scores queries against all live pages."""

    def __init__(self, live: LivePages) -> None:
        self.live = live

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
            from anchorfold.index.threads import in_parallel

            in_parallel(work, self.live.blocks(limit))
        sums = np.zeros((len(queries), len(self.live)), np.float32)
        for token, query in enumerate(owner):
            sums[query] += best[token]
        return sums

    def top(
        self, queries: Sequence[Any], count: int, allowed: np.ndarray | None = None, exact: bool | None = None
    ) -> list[list[tuple[int, float]]]:
        """For each query its best pages as (number of the page, score), best first.

        Args:
            queries: `(tokens, d)` each, arrays or tensors.
            count: pages to return, at most.
            allowed: `(rows,)` true for pages that may be returned; all live ones if None.
            exact: multiply floats (True), or what is quicker on this machine.
        """
        way = self.way(exact)
        mask = self.live.allowed if allowed is None else allowed & self.live.allowed
        available = int(mask.sum())
        chosen = min(available, max(RESCORED, 2 * count) if way == "integers" else count + SPARE)
        answers: list[list[tuple[int, float]]] = []
        for some in self._parts(queries):
            for query, row in zip(some, self.scores(some, way), strict=True):
                if not len(query) or not available:
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

    def rescored(self, query: Any, pages: np.ndarray) -> np.ndarray:
        """`(n,)` MaxSim of a query and some pages, page by page."""
        coding = self.live.coding
        tokens = coding.turn(np.asarray(query, np.float32))
        scores = np.empty(len(pages), np.float32)
        for i, number in enumerate(pages.tolist()):
            segment, row = self.live.locate(number)
            rows = segment.rows_of(row)
            scores[i] = coding.products(tokens, segment.codes[rows], segment.scales[rows]).max(0).sum()
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


def flatten(queries: Sequence[Any], coding: Any) -> tuple[np.ndarray, list[int]]:
    """All tokens of all queries below each other as they are multiplied, and whose they are."""
    arrays = [np.asarray(query, np.float32).reshape(-1, coding.dim) for query in queries]
    owner = [number for number, array in enumerate(arrays) for _ in range(len(array))]
    return coding.turn(np.concatenate([np.zeros((0, coding.dim), np.float32), *arrays])), owner
