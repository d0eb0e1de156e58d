"""Memory and time limits of the renderer process, enforced inside it: exceeding one ends the process."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

GIGABYTE = 2**30
MEMORY_FRACTION = 4  # the default limit is a quarter of the machine's memory
MIN_MEMORY = GIGABYTE
MEMORY_EXIT = 77  # exit code of a process that exceeded its memory limit
HEADROOM = 2 * GIGABYTE  # between our limit and the system's: about one second of the fastest growth
INTERVAL = 0.05  # seconds between two checks of the memory
GRACE = 10  # seconds: the parent process ends a slow page before the process itself does


def default_memory() -> int:
    """Return a quarter of the memory of the machine or its container, in bytes."""
    if not hasattr(os, "sysconf"):  # Windows, where no process is limited
        return MIN_MEMORY
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError), open(path) as file:  # may contain "max"
            memory = min(memory, int(file.read()))
    return max(memory // MEMORY_FRACTION, MIN_MEMORY)


def limit_memory(memory: int) -> None:
    """End this process with exit code `MEMORY_EXIT` when it uses more than `memory` bytes.

    A limit of the operating system alone is not sufficient: when an allocation fails, PDFium omits images from a page
    without an error. A thread therefore checks the memory, and the system limit is set above for growth that is faster
    than the thread. macOS does not enforce the latter.
    """
    import resource  # not available on Windows

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash would write the whole memory to disk
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = memory + max(memory, HEADROOM)
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    threading.Thread(target=_check_memory, args=(memory,), daemon=True).start()


def _check_memory(memory: int) -> None:
    while memory_in_use() <= memory:
        time.sleep(INTERVAL)
    os._exit(MEMORY_EXIT)


def memory_in_use() -> int:
    """Return the resident memory of this process in bytes; its peak where the system reports only that."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """End this process if a step takes too long; needed when its parent was killed."""
    signal.alarm(math.ceil(seconds) + GRACE)
    try:
        yield
    finally:
        signal.alarm(0)
