"""A small pool of threads for scanning, with BLAS at one thread in each.

Chunks of pages are many and small, so threads beside each other beat threads inside a product.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_users = 0
_threads_before = 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """torch at one thread while any scan runs."""
    import torch

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
    return ThreadPoolExecutor(workers(), "anchorfold-scan")


def workers() -> int:
    """Threads of the pool."""
    # macOS does not say which processors this process may use.
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, processors)


def in_parallel(work: Callable[[T], None], items: Iterable[T]) -> None:
    """Do the work of all items on the pool, each worker taking the next item when it is free."""
    left = iter(list(items))

    def worker(_: int) -> None:
        for item in left:
            work(item)

    list(_pool().map(worker, range(workers())))


def in_parallel_with_torch(work: Callable[[T], None], items: Iterable[T]) -> None:
    """The same for work that multiplies with torch."""
    import torch

    def with_one_thread(item: T) -> None:
        torch.set_num_threads(1)  # each thread has a number of its own
        work(item)

    with one_blas_thread():
        in_parallel(with_one_thread, items)
