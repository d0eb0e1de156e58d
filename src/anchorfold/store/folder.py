"""The folder of an index: is it one, may it become one, how large is it."""

from __future__ import annotations

import os
from pathlib import Path

from anchorfold.errors import AnchorFoldError, NotAnIndexError
from anchorfold.store.flat import CACHE
from anchorfold.store.lock import HOLDER_FILE, LOCK_FILE
from anchorfold.store.table import NAME, PageTable

OURS = {f"{NAME}.lance", CACHE, LOCK_FILE, HOLDER_FILE}


def is_index(folder: str | Path) -> bool:
    """Whether a folder holds a table of pages that opens."""
    try:
        PageTable.open(Path(folder))
    except NotAnIndexError as error:
        if "damaged" in str(error):
            raise
        return False
    return True


def folder_bytes(folder: Path) -> int:
    """Bytes of an index on disk, without the search cache, which can be made again."""
    total = 0
    for at, folders, files in os.walk(folder):
        if CACHE in folders and Path(at) == folder:
            folders.remove(CACHE)
        total += sum(os.path.getsize(os.path.join(at, f)) for f in files if os.path.exists(os.path.join(at, f)))
    return total


def make_folder(folder: Path) -> None:
    """A folder that may become an index: new, empty, or left behind by a creation that was cut short."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entries = {e.name for e in folder.iterdir()}
    except FileExistsError as error:
        raise NotAnIndexError(f"{folder} is a file: give a folder for the index.") from error
    except OSError as error:
        raise AnchorFoldError(f"{folder} cannot be made: {(error.strerror or str(error)).lower()}.") from error
    if entries - OURS:
        raise NotAnIndexError(
            f"{folder} is not an index and not empty ({sorted(entries - OURS)[0]} is in it): choose another folder."
        )
