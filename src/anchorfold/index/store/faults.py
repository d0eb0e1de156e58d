"""Errors of the operating system and of SQLite, translated into errors that a user can act on."""

from __future__ import annotations

import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from anchorfold.errors import DamagedError, DiskFullError, NotAnIndexError, StoreError
from anchorfold.index.store.schema import DATABASE, VECTORS

FULL = {errno.ENOSPC, errno.EDQUOT}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Translate errors raised while the index in `folder` is read or written.

    Programming errors such as ValueError pass through unchanged.
    """
    try:
        yield
    except sqlite3.Error as error:
        raise explain_sqlite(error, folder) from error
    except (MemoryError, UnicodeDecodeError, OverflowError) as error:  # what a flipped bit makes of a stored value
        raise damaged(folder, f"{DATABASE} contains a value that cannot be read") from error
    except OSError as error:
        raise explain_os(error, folder) from error


@contextmanager
def sqlite_errors(folder: Path) -> Iterator[None]:
    """Translate errors of SQLite alone."""
    try:
        yield
    except sqlite3.Error as error:
        raise explain_sqlite(error, folder) from error


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
                stack.enter_context(open(folder / DATABASE, "rb"))
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder, prefix=".probe-"))
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return explain_os(error, folder)
    return None


def is_there(folder: Path) -> bool:
    """Whether a folder contains an index, intact or not."""
    return (folder / DATABASE).exists() or has_vector_files(folder)


def has_vector_files(folder: Path) -> bool:
    """Whether a folder contains vector files."""
    try:
        return any(name.endswith(".seg") for name in os.listdir(folder / VECTORS))
    except (FileNotFoundError, NotADirectoryError):
        return False


def not_there(folder: Path) -> NotAnIndexError:
    """The error for an index that was never opened and has no folder."""
    return NotAnIndexError(f"{folder} does not exist: create it with `anchorfold index FILES --to {folder}`.")


def moved(folder: Path) -> NotAnIndexError:
    """The error for an index that was opened and no longer exists at its path."""
    return NotAnIndexError(f"{folder} no longer exists: it was moved or removed. Open it at its new path.")


def disk_full(folder: Path) -> DiskFullError:
    """The error for a full disk."""
    return DiskFullError(
        f"the disk is full: what was committed to {folder} is safe. Free some space and run the command again."
    )


def damaged(folder: Path, problem: str) -> DamagedError:
    """The error for files that differ from what was written."""
    return DamagedError(
        f"{folder} is damaged ({problem}): `anchorfold check {folder}` lists the affected documents and how to repair "
        "the index. Alternatively, restore it from a backup.",
        problem,
    )
