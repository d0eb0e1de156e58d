"""Files that are on the disk when a function returns."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def write_synced(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file that nothing refers to yet and sync it and its name; on an error the partial file is removed."""
    path.unlink(missing_ok=True)  # a process that has an older file of this name mapped keeps it
    try:
        with open(path, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            sync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)  # frees the space on a full disk
        raise
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Sync a file by its path."""
    with open(path, "rb+") as file:
        sync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder."""
    if os.name == "nt":  # a folder cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        sync(handle)
    finally:
        os.close(handle)


def sync(handle: int) -> None:
    """Wait until an open file or folder is on the disk."""
    if sys.platform == "darwin":  # fsync there stops at the drive's own memory
        import fcntl

        with suppress(OSError):  # not supported by every file system
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
    os.fsync(handle)
