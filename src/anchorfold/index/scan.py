"""Exact and fast MaxSim over a flat index, on a small pool of threads.

Each thread multiplies with BLAS at one thread: chunks of pages are many and small, so threads beside each other
beat threads inside a product.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from anchorfold.index.store.flat import FlatIndex

CHUNK_VALUES = 1 << 21  # numbers of a block: large enough that Python's share of the work does not show
T = TypeVar("T")
Block = tuple[int, int, int]  # first page, last page (exclusive), vectors of each

RESCORED = 100
FAST_FROM = 2000  # pages: below, the exact scan is as quick

_lock = threading.Lock()
_users = 0
_threads_before = 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """BLAS at one thread while any scan runs."""
    global _users, _threads_before  # noqa: PLW0603
    with _lock:
        if _users == 0:
            _threads_before = torch.get_num_threads()
        _users += 1
        torch.set_num_threads(1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                torch.set_num_threads(_threads_before)


@lru_cache(1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_workers(), "anchorfold-scan", torch.set_num_threads, (1,))


def _workers() -> int:
    return min(8, len(os.sched_getaffinity(0)))


def in_parallel(work: Callable[[T], None], items: Iterable[T]) -> None:
    """Do the work of all items on the pool, each worker taking the next item when it is free."""
    left = iter(list(items))

    def worker(_: int) -> None:
        for item in left:
            work(item)

    with one_blas_thread():
        list(_pool().map(worker, range(_workers())))


class Scanner:
    """Scores queries against all pages of a flat index."""

    def __init__(self, flat: FlatIndex) -> None:
        self.flat = flat
        self.starts = np.concatenate(([0], flat.lengths.cumsum()))
        self.vectors, self.codes = torch.from_numpy(flat.vectors), torch.from_numpy(flat.codes)
        limit = max(64, CHUNK_VALUES // max(1, flat.vectors.shape[1]))
        self.blocks = list(equal_blocks(flat.lengths, limit))
        self.code_blocks = list(equal_blocks(flat.lengths, 4 * limit))  # a quarter of the bytes a number

    def exact(self, queries: Sequence[Tensor]) -> Tensor:
        """`(queries, pages)` MaxSim of float vectors."""
        tokens, owner = flatten(queries)

        def score(block: Tensor) -> Tensor:
            return tokens @ block.float().T

        return self._scan(self.vectors, self.blocks, score, len(tokens), owner, len(queries))

    def approximate(self, queries: Sequence[Tensor]) -> Tensor:
        """`(queries, pages)` MaxSim of int8 codes: for choosing pages, not for showing scores."""
        tokens, owner = flatten(queries)
        step = tokens.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        rounded = (tokens / step).round().to(torch.int8)

        def score(block: Tensor) -> Tensor:
            return torch._int_mm(rounded, block.T)

        step = step * self.flat.scale
        return self._scan(self.codes, self.code_blocks, score, len(tokens), owner, len(queries), step)

    def _scan(
        self, flat: Tensor, blocks: Sequence[Block], score: Callable[[Tensor], Tensor], tokens: int, owner: Tensor,
        queries: int,
        step: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        best = torch.empty(tokens, len(self.flat))

        def work(block_of: Block) -> None:
            first, last, length = block_of
            block = flat[self.starts[first] : self.starts[last]]
            found = score(block).view(tokens, last - first, length).amax(2)
            best[:, first:last] = found if step is None else found * step

        if tokens and len(self.flat):
            in_parallel(work, blocks)
        if queries == 1:
            return best.sum(0, keepdim=True)
        return torch.zeros(queries, len(self.flat)).index_add_(0, owner, best)

    def top(
        self, queries: Sequence[Tensor], count: int, allowed: Tensor | None = None, exact: bool | None = None
    ) -> list[list[tuple[int, float]]]:
        """For each query its best pages as (number in the flat index, exact score), best first.

        Args:
            queries: `(tokens, d)` each.
            count: pages to return, at most.
            allowed: `(P,)` true for pages that may be returned.
            exact: scan floats rather than int8 codes; None decides by the number of pages.
        """
        if exact is None:
            exact = len(self.flat) < FAST_FROM
        scores = self.exact(queries) if exact else self.approximate(queries)
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        available = len(self.flat) if allowed is None else int(allowed.sum())
        results: list[list[tuple[int, float]]] = []
        for query, row in zip(queries, scores, strict=True):
            if not len(query) or not available:
                results.append([])
                continue
            if exact:
                results.append(best_of(row, torch.arange(len(row)), min(count, available)))
                continue
            short = row.topk(min(max(RESCORED, 2 * count), available)).indices.sort().values
            results.append(best_of(self._rescore(query, short), short, min(count, available)))
        return results

    def _rescore(self, query: Tensor, pages: Tensor) -> Tensor:
        scores = torch.empty(len(pages))

        def work(item: tuple[int, int]) -> None:
            place, page = item
            vectors = self.vectors[self.starts[page] : self.starts[page + 1]]
            scores[place] = (query @ vectors.float().T).amax(1).sum()

        in_parallel(work, enumerate(pages.tolist()))
        return scores


def best_of(scores: Tensor, pages: Tensor, count: int) -> list[tuple[int, float]]:
    """The best pages and their scores; equal scores in page order."""
    order = torch.sort(scores, descending=True, stable=True).indices[:count]
    return [(int(pages[i]), float(scores[i])) for i in order]


def flatten(queries: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """All query vectors below each other, and whose they are."""
    owner = torch.repeat_interleave(torch.tensor([len(q) for q in queries], dtype=torch.long))
    return torch.cat([q.float() for q in queries]), owner


def equal_blocks(lengths: np.ndarray, limit: int) -> Iterator[tuple[int, int, int]]:
    """Runs `(first, last, length)` of pages of equal length that hold at most `limit` vectors, or one page."""
    edges = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)] if len(lengths) else []
    for start, stop in pairwise(edges):
        length = int(lengths[start])
        step = max(1, limit // length)
        for first in range(start, stop, step):
            yield first, min(first + step, stop), length
