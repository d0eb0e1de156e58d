"""The folder of an index: is it one, may it become one, how large is it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from anchorfold.errors import AnchorFoldError, NotAnIndexError
from anchorfold.index.store.catalogue import HEAD, LOGS
from anchorfold.index.store.faults import is_there
from anchorfold.index.store.lock import HOLDER_FILE, LOCK_FILE
from anchorfold.index.store.snapshot import SEGMENTS
from anchorfold.index.store.table import OLD_FOLDERS, PageTable
from anchorfold.index.store.texts import FILES as TEXT_FILES

# The last is left by macOS wherever it looks.
OURS = {HEAD, f"{HEAD}.part", LOGS, SEGMENTS, *OLD_FOLDERS, LOCK_FILE, HOLDER_FILE, *TEXT_FILES, ".DS_Store"}


def is_index(folder: str | Path) -> bool:
    """Whether a folder holds an index that opens."""
    try:
        PageTable.open(Path(folder))
    except NotAnIndexError:
        return False
    return True


def folder_bytes(folder: Path) -> int:
    """Bytes of a folder with all that is in it, as `du -sb` counts them; 0 if it is not there."""
    total = 0
    for at, _, files in os.walk(folder):
        for path in (at, *(os.path.join(at, name) for name in files)):
            with suppress(FileNotFoundError):  # tidied away meanwhile
                total += os.lstat(path).st_size
    return total


def require_free(folder: Path) -> None:
    """Refuse a folder that holds something else: it must be new, empty, or left by a creation that was cut short."""
    if folder.exists() and not folder.is_dir():
        raise NotAnIndexError(f"{folder} is a file: give a folder for the index.")
    try:
        others = sorted({e.name for e in folder.iterdir()} - OURS) if folder.exists() else []
    except OSError as error:
        raise AnchorFoldError(f"{folder} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    if others:
        raise NotAnIndexError(f"{folder} is not an index and not empty ({others[0]} is in it): choose another folder.")


def require_target(folder: Path) -> None:
    """Refuse a folder that is neither an index nor may become one."""
    if not is_there(folder):
        require_free(folder)


def make_folder(folder: Path) -> None:
    """A folder that may become an index."""
    require_free(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AnchorFoldError(f"{folder} cannot be made: {(error.strerror or str(error)).lower()}.") from error
