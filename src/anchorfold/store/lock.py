"""One writer at a time, across processes. The system frees the lock if its holder dies."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from anchorfold.errors import LockedError

LOCK_FILE = "writer.lock"
HOLDER_FILE = "writer.json"


@contextmanager
def writer_lock(folder: Path, wait: float, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold the index for writing.

    Args:
        folder: the index.
        wait: seconds to wait for another writer; negative waits for ever.
        waiting: told once, in a sentence, whom it waits for.
    """
    lock = FileLock(folder / LOCK_FILE)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        if waiting is not None and wait:
            waiting(f"{holder(folder)} is writing to {folder}: waiting for it.")
        try:
            lock.acquire(timeout=wait)
        except Timeout as error:
            raise LockedError(f"{holder(folder)} is writing to {folder}: try again when it has ended.") from error
    try:
        text = json.dumps({"process": os.getpid(), "machine": platform.node()})
        (folder / HOLDER_FILE).write_text(text)
        yield
    finally:
        (folder / HOLDER_FILE).unlink(missing_ok=True)
        lock.release()


def holder(folder: Path) -> str:
    """Who holds the lock, in words."""
    try:
        data = json.loads((folder / HOLDER_FILE).read_text())
        return f"process {data['process']} on {data['machine']}"
    except (OSError, ValueError, KeyError):
        return "another process"
