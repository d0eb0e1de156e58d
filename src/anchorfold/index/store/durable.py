"""Files that are on the disk when a function returns: written, synced, renamed."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def write_synced(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file that nobody reads yet, and bring it and its name to the disk; nothing is left of it on an error."""
    try:
        with open(path, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            to_disk(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)  # on a full disk, room is what is wanted most
        raise
    sync_folder(path.parent)


def replace_synced(path: Path, data: bytes) -> None:
    """Put a file in the place of another in one step."""
    part = path.with_name(f"{path.name}.part")
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            to_disk(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in a folder to the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        to_disk(handle)
    finally:
        os.close(handle)


def to_disk(handle: int) -> None:
    """Wait until an open file or folder is on the disk."""
    if sys.platform == "darwin":  # fsync there stops at the drive's own memory
        with suppress(OSError):  # a file system that cannot
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
    os.fsync(handle)
