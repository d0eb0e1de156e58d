"""One writer at a time, across processes. The system frees the lock if its holder dies."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from anchorfold.errors import LockedError
from anchorfold.index.store.faults import moved, storage_errors

LOCK_FILE = "writer.lock"
HOLDER_FILE = "writer.json"


@contextmanager
def writer_lock(
    folder: Path,
    wait: float,
    waiting: Callable[[str], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Iterator[None]:
    """Hold the index for writing.

    Args:
        folder: the index.
        wait: seconds to wait for another writer; negative waits for ever.
        waiting: called once with a sentence on whom it waits for.
        stop: asked while it waits; True ends the waiting as if the time were over.
    """
    from filelock import FileLock, Timeout  # readers, who take no lock, need not wait for it

    if not folder.is_dir():  # the lock would make the folder anew, beside one that was moved
        raise moved(folder)
    lock = FileLock(folder / LOCK_FILE)
    with storage_errors(folder):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if waiting is not None and wait:
                waiting(f"{holder(folder)} is writing to {folder}: waiting for it.")
            try:
                lock.acquire(timeout=wait, cancel_check=stop)
            except Timeout as error:
                raise LockedError(f"{holder(folder)} is writing to {folder}: try again when it has ended.") from error
    try:
        text = json.dumps({"process": os.getpid(), "machine": platform.node()})
        with suppress(OSError):  # a courtesy to whoever waits: a full disk must not stop the writer here
            (folder / HOLDER_FILE).write_text(text)
        yield
    finally:
        with suppress(OSError):
            (folder / HOLDER_FILE).unlink(missing_ok=True)
        lock.release()


def holder(folder: Path) -> str:
    """Who holds the lock, in words."""
    try:
        data = json.loads((folder / HOLDER_FILE).read_text())
        return f"process {data['process']} on {data['machine']}"
    except (OSError, ValueError, KeyError):
        return "another process"
