"""What the renderer's process may use: memory, and time for a page. A page that wants more ends the process."""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

GIGABYTE = 2**30
SHARE = 4  # one part in so many of the machine's memory
LEAST = GIGABYTE
MEMORY_EXIT = 77  # the exit code of a process that needed too much
HEADROOM = 2 * GIGABYTE  # above the limit, before the system ends the process: about a second of the fastest growth
INTERVAL = 0.05  # seconds between two looks at the memory
GRACE = 10  # seconds: the parent, if there is one, ends a page that takes too long before the process itself does


def default_memory() -> int:
    """Bytes: a share of the machine's memory, or of what its container may use."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError), open(path) as file:  # it may say "max"
            memory = min(memory, int(file.read()))
    return max(memory // SHARE, LEAST)


def limit_memory(memory: int) -> None:
    """End this process when it uses more than so many bytes, with an exit code that says so.

    A limit of the system alone would not do: past it the PDF library leaves pictures out of a page without a word.
    So a thread watches, and the system's limit lies above it, for what is too fast for the thread. macOS does not
    enforce that one: there the thread is all.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash would write all of the memory to the disk
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = memory + max(memory, HEADROOM)
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    threading.Thread(target=_watch, args=(memory,), daemon=True).start()


def _watch(memory: int) -> None:
    while memory_in_use() <= memory:
        time.sleep(INTERVAL)
    os._exit(MEMORY_EXIT)


def memory_in_use() -> int:
    """Bytes of this process that are in memory; where the system does not tell, the most that there ever were."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024


@contextmanager
def limit_time(seconds: float) -> Iterator[None]:
    """End this process if a step takes too long: the parent does that first, unless it is gone."""
    signal.alarm(math.ceil(seconds) + GRACE)
    try:
        yield
    finally:
        signal.alarm(0)
