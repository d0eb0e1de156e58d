"""The writer lock: one writer at a time, across processes. The system releases it if its holder dies."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from anchorfold.errors import LockedError
from anchorfold.storage.file_errors import moved, storage_errors

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK_FILE = "writer.lock"
HOLDER_FILE = "writer.json"


@contextmanager
def writer_lock(
    folder: Path,
    wait: float,
    waiting: Callable[[str], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> Iterator[None]:
    """Hold the writer lock of an index.

    Args:
        folder: the index.
        wait: seconds to wait for another writer; negative waits indefinitely.
        waiting: called once with a message if another process holds the lock.
        stop: polled while waiting; True gives up.
    """
    from filelock import FileLock, Timeout  # imported late: readers do not need it

    lock = FileLock(folder / LOCK_FILE)
    with storage_errors(folder):
        while True:
            if not folder.is_dir():  # the lock would re-create the folder of an index that was moved
                raise moved(folder)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                if waiting is not None and wait:
                    waiting(f"{holder(folder)} is writing to {folder}: waiting for it.")
                try:
                    lock.acquire(timeout=wait, cancel_check=stop)
                except Timeout as error:
                    raise LockedError(f"{holder(folder)} is writing to {folder}: try again later.") from error
            if _is_current(lock, folder / LOCK_FILE):
                break
            lock.release()  # the folder was re-created while we waited: its lock is another file
    try:
        text = json.dumps({"process": os.getpid(), "machine": platform.node()})
        with suppress(OSError):  # informative only: a full disk must not stop the writer here
            (folder / HOLDER_FILE).write_text(text)
        yield
    finally:
        with suppress(OSError):
            (folder / HOLDER_FILE).unlink(missing_ok=True)
        lock.release()


def _is_current(lock: BaseFileLock, path: Path) -> bool:
    """Return whether the file that is locked is the one at the path."""
    try:
        handle = lock._context.lock_file_fd
        return handle is None or os.path.samestat(os.fstat(handle), os.stat(path))
    except FileNotFoundError:
        return False


def holder(folder: Path) -> str:
    """Return a description of the process that holds the lock."""
    try:
        data = json.loads((folder / HOLDER_FILE).read_text())
        return f"process {data['process']} on {data['machine']}"
    except (OSError, ValueError, KeyError):
        return "another process"
