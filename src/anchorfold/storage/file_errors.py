"""Files of an index: what exists, syncing, and errors of the system and of SQLite that a user can act on."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import BinaryIO

from anchorfold.errors import DamagedError, DiskFullError, NotAnIndexError, StoreError
from anchorfold.storage.schema import DATABASE, VECTORS

FULL = {errno.ENOSPC, errno.EDQUOT}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}
UNREADABLE = f"{DATABASE} contains a value that cannot be read"
PROGRAMMING_ERRORS = (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.NotSupportedError)


def write_synced(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Write a file that nothing refers to yet and sync it and its name; on an error the partial file is removed."""
    path.unlink(missing_ok=True)  # a process that has an older file of this name mapped keeps it
    try:
        with open(path, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            _sync(file.fileno())
    except BaseException:
        path.unlink(missing_ok=True)  # frees the space on a full disk
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder."""
    if os.name == "nt" and path.is_dir():  # a folder cannot be opened there
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        _sync(handle)
    finally:
        os.close(handle)


def _sync(handle: int) -> None:
    if sys.platform == "darwin":  # fsync there does not flush the cache of the drive
        import fcntl

        with suppress(OSError):  # not supported by every file system
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
    os.fsync(handle)


@cache
def _raw_handle(path: Path, device: int, inode: int) -> int:
    return os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))


@contextmanager
def raw_database(path: Path) -> Iterator[BinaryIO]:
    """Open the bytes of a file that SQLite may have open in this process.

    The descriptor stays open: closing it would release the locks of SQLite.
    """
    status = os.stat(path)
    with open(_raw_handle(path, status.st_dev, status.st_ino), "r+b", buffering=0, closefd=False) as file:
        file.seek(0)
        yield file


def copy_database(source: Path, target: Path) -> None:
    """Copy a database or its journal, which SQLite may have open in this process."""
    with raw_database(source) if source.name == DATABASE else open(source, "rb") as file, open(target, "wb") as copy:
        shutil.copyfileobj(file, copy, 1 << 20)


def is_there(folder: Path) -> bool:
    """Return whether a folder contains an index, intact or not."""
    return (folder / DATABASE).exists() or has_vector_files(folder)


def has_vector_files(folder: Path) -> bool:
    """Return whether a folder contains vector files."""
    try:
        return any(name.endswith(".seg") for name in os.listdir(folder / VECTORS))
    except (FileNotFoundError, NotADirectoryError):
        return False


def folder_bytes(folder: Path) -> int:
    """Return bytes of a folder and everything in it, as `du -sb` counts them; 0 if it does not exist."""
    total = 0
    for at, _, files in os.walk(folder):
        for path in (at, *(os.path.join(at, name) for name in files)):
            with suppress(FileNotFoundError):  # removed meanwhile
                total += os.lstat(path).st_size
    return total


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Translate errors raised while the index in `folder` is read or written.

    Programming errors, such as ValueError or the use of a closed connection, pass through unchanged.
    """
    try:
        with sqlite_errors(folder):
            yield
    except (MemoryError, OverflowError) as error:  # caused by a flipped bit in a stored value
        raise damaged(folder, UNREADABLE) from error
    except OSError as error:
        raise explain_os(error, folder) from error


@contextmanager
def sqlite_errors(folder: Path) -> Iterator[None]:
    """Translate errors of SQLite alone."""
    try:
        yield
    except PROGRAMMING_ERRORS:
        raise
    except sqlite3.Error as error:
        raise explain_sqlite(error, folder) from error
    except UnicodeDecodeError as error:
        raise damaged(folder, UNREADABLE) from error


def explain_os(error: OSError, folder: Path) -> StoreError:
    """Translate an error of the operating system."""
    code = error.errno or 0
    if code in FULL:
        return disk_full(folder)
    if code in FORBIDDEN:
        return StoreError(f"{folder} cannot be read or written: permission denied.")
    if code in NO_DESCRIPTORS:
        return StoreError(
            f"{folder} cannot be opened: this process has no file descriptors left. Raise the limit (ulimit -n), or "
            "close other files, and try again."
        )
    if code == errno.ENOENT:
        if not is_there(folder):
            return moved(folder)
        name = os.path.basename(os.fspath(error.filename)) if error.filename else "a file"
        return damaged(folder, f"{name} is missing")
    reason = os.strerror(code).lower() if code else str(error)
    return StoreError(f"{folder} cannot be read or written: {reason}.")


def explain_sqlite(error: sqlite3.Error, folder: Path) -> StoreError:
    """Translate an error of SQLite."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    reason = next(iter(str(error).splitlines()), "")[:120]
    if code == sqlite3.SQLITE_FULL:
        return disk_full(folder)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL):
        return StoreError(f"{folder / DATABASE} is locked by another process: try again in a moment.")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreError(f"{folder / DATABASE} cannot be written: permission denied.")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM):
        cause = _cause(folder)
        return cause or StoreError(f"{folder / DATABASE} cannot be read or written ({reason}): try again.")
    if "no such module" in reason:
        return StoreError(
            "the SQLite library of this Python has no full-text search (FTS5): use another build of Python."
        )
    return damaged(folder, f"{DATABASE}: {reason}")


def _cause(folder: Path) -> StoreError | None:
    """Find out why SQLite could not open or write a file: it reports neither a full disk nor missing descriptors."""
    try:
        with ExitStack() as stack:
            for _ in range(3):  # SQLite opens the database, the write-ahead log and the shared memory
                stack.enter_context(open(os.devnull, "rb"))
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder, prefix=".probe-"))
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return explain_os(error, folder)
    return None


def not_there(folder: Path) -> NotAnIndexError:
    """Return the error for an index that was never opened and has no folder."""
    return NotAnIndexError(f"{folder} does not exist: create it with `anchorfold index FILES -o {folder}`.")


def moved(folder: Path) -> NotAnIndexError:
    """Return the error for an index that was opened and no longer exists at its path."""
    return NotAnIndexError(f"{folder} no longer exists: it was moved or removed. Open it at its new path.")


def disk_full(folder: Path) -> DiskFullError:
    """Return the error for a full disk."""
    return DiskFullError(
        f"the disk is full: what was committed to {folder} is safe. Free some space and run the command again."
    )


def damaged(folder: Path, problem: str) -> DamagedError:
    """Return the error for files that differ from what was written."""
    return DamagedError(
        f"{folder} is damaged ({problem}): `anchorfold check {folder}` lists the affected documents and how to repair "
        "the index. Alternatively, restore it from a backup.",
        problem,
    )
