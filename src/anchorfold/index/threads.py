"""A thread pool for scanning with one BLAS thread each, and a lock that survives a fork.

Chunks of pages are many and small, so parallel chunks are faster than threads inside a product.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class ForkSafeLock:
    """A lock that a forked child re-creates: the thread that held it in the parent does not exist there."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def renew(self) -> None:
        """Replace the lock by one that is free, in a forked child."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


_lock = ForkSafeLock()
_users = 0
_threads_before = 1
_pool: ThreadPoolExecutor | None = None


def _reset() -> None:
    global _users, _pool
    _users, _pool = 0, None  # no thread of the parent exists here
    for lock in list(_locks):
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit torch to one thread while any scan runs."""
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


def executor() -> ThreadPoolExecutor:
    """The pool of this process: threads do not survive a fork."""
    global _pool  # noqa: PLW0603
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(workers(), "anchorfold-scan")
        return _pool


def workers() -> int:
    """Number of threads of the pool."""
    # macOS does not report which processors this process may use.
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(8, processors)


def in_parallel(work: Callable[[T], None], items: Iterable[T]) -> None:
    """Process all items on the pool, each worker taking the next item when it is free."""
    left = iter(list(items))

    def worker(_: int) -> None:
        for item in left:
            work(item)

    list(executor().map(worker, range(workers())))


def in_parallel_with_torch(work: Callable[[T], None], items: Iterable[T]) -> None:
    """The same for work that multiplies with torch."""
    import torch

    def with_one_thread(item: T) -> None:
        torch.set_num_threads(1)  # each thread has its own setting
        work(item)

    with one_blas_thread():
        in_parallel(with_one_thread, items)
