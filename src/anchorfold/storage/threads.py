"""A lock that survives a fork."""

from __future__ import annotations

import os
import threading
import weakref

_locks: weakref.WeakSet[ForkSafeLock] = weakref.WeakSet()


class ForkSafeLock:
    """A lock that a forked child re-creates: the thread that held it in the parent does not exist there."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        _locks.add(self)

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def _reset() -> None:
    for held in list(_locks):
        held.lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset)
