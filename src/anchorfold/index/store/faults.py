"""What the system, and LanceDB in old indexes, report, as errors of our own: damaged is said only of what is."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from anchorfold.errors import DamagedError, DiskFullError, NotAnIndexError, StoreError

FULL = {errno.ENOSPC, errno.EDQUOT}
FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
NO_DESCRIPTORS = {errno.EMFILE, errno.ENFILE}

_CODE = re.compile(r"os error (\d+)")
_FULL_WORDS = ("No space left", "StorageFull", "Disk quota")
# What Lance says of a file that ends too early or does not hold what it should.
_DAMAGE_WORDS = (
    "magic", "fill whole buffer", "too small", "sufficient data", "decode", "corrupt", "checksum", "out of range",
    "does not appear to be a Lance file", "Unexpected EOF", "unexpected end", "Invalid",
)  # fmt: skip


@contextmanager
def storage_errors(folder: Path) -> Iterator[None]:
    """Errors of the index in `folder` as one sentence each."""
    try:
        yield
    except (RuntimeError, OSError, ValueError) as error:  # Arrow's are of these too
        raise explained(error, folder) from error
    except BaseException as error:
        # Lance's Rust code panics on some damaged files, and its panic is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise damaged(folder, "its table cannot be decoded") from error


def explained(error: Exception, folder: Path) -> StoreError:
    """The error that a person can act on."""
    text = next(iter(str(error).splitlines()), "") or type(error).__name__
    numbered = _CODE.search(str(error))
    code = error.errno if isinstance(error, OSError) and error.errno else int(numbered.group(1)) if numbered else 0
    if code in FULL or any(word in text for word in _FULL_WORDS):
        return DiskFullError(
            f"the disk is full: what was committed to {folder} is safe; free some space and run the command again."
        )
    if code in FORBIDDEN or "Permission denied" in text or "Read-only file system" in text:
        return StoreError(f"{folder} cannot be read or written: permission denied.")
    if code in NO_DESCRIPTORS:
        return StoreError(
            f"too many open files: this process has no descriptors left to open {folder} with; raise the limit "
            "(ulimit -n), or close other files, and try again."
        )
    if code == errno.ENOENT or "Not found" in text:
        if not is_there(folder):
            return moved(folder)
        return damaged(folder, "a file of it is missing")
    if code:
        return StoreError(f"{folder} cannot be read or written: {os.strerror(code).lower()}.")
    if any(word in text for word in _DAMAGE_WORDS):
        return damaged(folder, shortened(text))
    return StoreError(f"{folder} cannot be read or written ({shortened(text)}): try again.")


def is_there(folder: Path) -> bool:
    """Whether the folder still holds an index, whole or not."""
    return (folder / "logs").is_dir() or (folder / "pages.lance").is_dir()


def moved(folder: Path) -> NotAnIndexError:
    """For an index that was opened and is gone from its place."""
    return NotAnIndexError(f"{folder} is no longer there: it was moved or removed; open it at its new place.")


def damaged(folder: Path, what: str) -> DamagedError:
    """For files that are not what was written."""
    return DamagedError(
        f"{folder} is damaged ({what}): `anchorfold check {folder}` tells which documents are affected and how to mend "
        "it; or restore it from a backup."
    )


def shortened(text: str) -> str:
    """Without the places in Lance's own source code."""
    return re.sub(r",? /(root|rustc|home)/\S+", "", text)[:160]
