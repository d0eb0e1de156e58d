"""Exact and fast MaxSim over a flat index, on a small pool of threads.

Each thread multiplies with BLAS at one thread: chunks of pages are many and small, so threads beside each other
beat threads inside a product.

The fast path scans int8 codes and scores its best pages exactly. Where processors multiply int8 in one instruction
(VNNI, AMX) that is several times as quick as floats, elsewhere up to ten times slower: a short trial decides, once a
process. Where it decides, the scores shown are computed exactly and page by page, the same to the bit by every way.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from anchorfold.index.store.flat import FlatIndex

FLOAT_NUMBERS = 1 << 19  # numbers of a block that becomes float32: it should stay in a cache of a core
CODE_NUMBERS = 1 << 23  # numbers of a block of codes: large enough that Python's share of the work does not show
T = TypeVar("T")
Block = tuple[int, int, int]  # first page, last page (exclusive), vectors of each
Way = Literal["exact", "integer", "widened"]  # floats; codes multiplied as integers; codes multiplied as floats

RESCORED = 100  # pages that are scored exactly after a scan of codes, at least
SPARE = 5  # pages beyond the wanted ones that are rescored after an exact scan: rounding may swap neighbours
POOLED = 1 << 16  # numbers of a page: smaller ones are rescored sooner than threads would have taken them
LARGE = 1 << 24  # numbers of an index: below, the exact scan is as quick

TRIAL_NUMBERS, TRIAL_LENGTH, TRIAL_TOKENS, TRIAL_ROUNDS = 1 << 17, 64, 16, 9
WORTHWHILE = 0.8  # of the exact scan's time: for less gain than that the exact scan stays

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
    # macOS does not say which processors this process may use.
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, processors)


def in_parallel(work: Callable[[T], None], items: Iterable[T]) -> None:
    """Do the work of all items on the pool, each worker taking the next item when it is free."""
    left = iter(list(items))

    def worker(_: int) -> None:
        for item in left:
            work(item)

    with one_blas_thread():
        list(_pool().map(worker, range(_workers())))


@dataclass(frozen=True)
class Trial:
    """Seconds that this machine takes for a number of the index by each way, and for a rescored page however small.

    A way that does not work takes for ever.
    """

    exact: float
    integer: float
    widened: float
    page: float

    @property
    def codes(self) -> Way:
        """The quicker way to multiply codes."""
        return "integer" if self.integer <= self.widened else "widened"

    def way(self, numbers: float, pages: int, page_numbers: float) -> Way:
        """The quickest way for a whole scan.

        Args:
            numbers: that one thread scans.
            pages: how many more are rescored after a scan of codes than after an exact one.
            page_numbers: numbers of one page.
        """
        rescoring = pages * (self.page + page_numbers * self.exact)
        fast = numbers * min(self.integer, self.widened) + rescoring
        return self.codes if fast < WORTHWHILE * numbers * self.exact else "exact"


@lru_cache
def measure(dim: int, dtype: torch.dtype) -> Trial:
    """Try all ways on made-up vectors `(V, dim)` of an index's type; takes some milliseconds, once a process."""
    generator = torch.Generator().manual_seed(0)
    shape = (max(1, TRIAL_NUMBERS // (TRIAL_LENGTH * dim)) * TRIAL_LENGTH, dim)
    codes = torch.randint(-127, 128, shape, dtype=torch.int8, generator=generator)
    tokens = torch.randint(-127, 128, (TRIAL_TOKENS, dim), dtype=torch.int8, generator=generator)
    vectors, wide = codes.to(dtype), tokens.float()

    def maxima(products: Tensor) -> Tensor:
        return products.view(TRIAL_TOKENS, -1, TRIAL_LENGTH).amax(2)

    works: dict[str, Callable[[], Tensor]] = {
        "exact": lambda: maxima(float_products(wide, vectors)),
        "widened": lambda: maxima(float_products(wide, codes)),
        "page": lambda: page_score(wide[:1], vectors[:1]),
    }
    best = dict.fromkeys((*works, "integer"), math.inf)
    with one_blas_thread():
        if integer_products_are_right(tokens, codes[:TRIAL_LENGTH]):
            works["integer"] = lambda: maxima(integer_products(tokens, codes))
        for _ in range(TRIAL_ROUNDS):
            for name, work in works.items():
                began = time.perf_counter()
                work()
                best[name] = min(best[name], time.perf_counter() - began)
    page = best.pop("page")
    return Trial(page=page, **{name: seconds / codes.numel() for name, seconds in best.items()})


def integer_products_are_right(tokens: Tensor, codes: Tensor) -> bool:
    """Whether integers are multiplied here, and without overflow: kernels for processors without VNNI saturate."""
    try:
        return torch.equal(integer_products(tokens, codes).float(), float_products(tokens.float(), codes))
    except RuntimeError:
        return False


def float_products(tokens: Tensor, block: Tensor) -> Tensor:
    """`(tokens, vectors)` inner products of float32 tokens with vectors of any type."""
    return tokens @ block.float().T


def integer_products(tokens: Tensor, block: Tensor) -> Tensor:
    """`(tokens, vectors)` inner products of int8 with int8, as int32."""
    return torch._int_mm(tokens, block.T)


def page_score(query: Tensor, vectors: Tensor) -> Tensor:
    """MaxSim of one query and one page."""
    return float_products(query, vectors).amax(1).sum()


class Scanner:
    """Scores queries against all pages of a flat index."""

    def __init__(self, flat: FlatIndex) -> None:
        self.flat = flat
        self.starts = np.concatenate(([0], flat.lengths.cumsum()))
        self.vectors, self.codes = torch.from_numpy(flat.vectors), torch.from_numpy(flat.codes)
        dim = max(1, flat.vectors.shape[1])
        self.blocks = list(equal_blocks(flat.lengths, max(64, FLOAT_NUMBERS // dim)))
        self.code_blocks = list(equal_blocks(flat.lengths, max(64, CODE_NUMBERS // dim)))
        self.large = self.codes.numel() >= LARGE

    def exact(self, queries: Sequence[Tensor]) -> Tensor:
        """`(queries, pages)` MaxSim of float vectors."""
        tokens, owner = flatten(queries)
        return self._scan(self.vectors, self.blocks, partial(float_products, tokens), len(tokens), owner, len(queries))

    def approximate(self, queries: Sequence[Tensor], widened: bool = False) -> Tensor:
        """`(queries, pages)` MaxSim of int8 codes: for choosing pages, not for showing scores.

        Args:
            queries: `(tokens, d)` each.
            widened: multiply the integers as floats. The products are the same, so the same pages are chosen.
        """
        tokens, owner = flatten(queries)
        step = tokens.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
        rounded = (tokens / step).round()
        if widened:
            blocks, score = self.blocks, partial(float_products, rounded)
        else:
            blocks, score = self.code_blocks, partial(integer_products, rounded.to(torch.int8))
        return self._scan(self.codes, blocks, score, len(tokens), owner, len(queries), step * self.flat.scale)

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
            exact: scan floats (True) or codes (False); None takes what is quicker on this machine.
        """
        way = self.way(count, exact)
        scores = self.exact(queries) if way == "exact" else self.approximate(queries, way == "widened")
        if allowed is not None:
            scores = scores.masked_fill(~allowed, float("-inf"))
        available = len(self.flat) if allowed is None else int(allowed.sum())
        rescored = max(RESCORED, 2 * count) if way != "exact" else 0
        if way == "exact" and exact is None and self.large:
            rescored = count + SPARE  # the machine decided, and that must not show in the scores
        results: list[list[tuple[int, float]]] = []
        for query, row in zip(queries, scores, strict=True):
            if not len(query) or not available:
                results.append([])
                continue
            pages = first_best(row, min(rescored, available)) if rescored else torch.arange(len(row))
            final = self._rescore(query.float(), pages) if rescored else row
            results.append(best_of(final, pages, min(count, available)))
        return results

    def way(self, count: int, exact: bool | None = None) -> Way:
        """How `top` scans for `count` pages."""
        if exact or (exact is None and not self.large):
            return "exact"
        trial = self.trial()
        if exact is not None:
            return trial.codes
        more = max(RESCORED, 2 * count) - (count + SPARE)
        return trial.way(self.codes.numel() / _workers(), more, self.codes.numel() / len(self.flat))

    def trial(self) -> Trial:
        """What this machine takes for vectors such as these."""
        return measure(self.vectors.shape[1], self.vectors.dtype)

    def _rescore(self, query: Tensor, pages: Tensor) -> Tensor:
        scores = torch.empty(len(pages))

        def work(item: tuple[int, int]) -> None:
            i, page = item
            scores[i] = page_score(query, self.vectors[self.starts[page] : self.starts[page + 1]])

        items = enumerate(pages.tolist())
        if self.codes.numel() >= POOLED * len(self.flat):
            in_parallel(work, items)
        else:
            with one_blas_thread():
                for item in items:
                    work(item)
        return scores


def first_best(scores: Tensor, count: int) -> Tensor:
    """The `count` best pages in page order; of pages with equal scores the first."""
    least = scores.topk(count).values[-1]
    above, equal = (scores > least).nonzero()[:, 0], (scores == least).nonzero()[:, 0]
    return torch.cat([above, equal[: count - len(above)]]).sort().values


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
