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

import torch

T = TypeVar("T")

_lock = threading.Lock()
_users = 0
_threads_before = 1


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """torch at one thread while any scan runs."""
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
    return ThreadPoolExecutor(workers(), "anchorfold-scan", torch.set_num_threads, (1,))


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

    with one_blas_thread():
        list(_pool().map(worker, range(workers())))
