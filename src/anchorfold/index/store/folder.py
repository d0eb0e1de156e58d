"""The folder of an index: whether it is one, and whether it may become one."""

from __future__ import annotations

from pathlib import Path

from anchorfold.errors import AnchorFoldError, NotAnIndexError
from anchorfold.index.store.database import Database
from anchorfold.index.store.faults import is_there
from anchorfold.index.store.lock import HOLDER_FILE, LOCK_FILE
from anchorfold.index.store.schema import DATABASE, VECTORS

# Left by a creation that was interrupted, and by macOS.
PARTIAL = {f"{DATABASE}.part{suffix}" for suffix in ("", "-journal", "-wal", "-shm")}
IGNORED = {*PARTIAL, VECTORS, LOCK_FILE, HOLDER_FILE, ".DS_Store"}


def is_index(folder: str | Path) -> bool:
    """Whether a folder contains an index that can be opened."""
    try:
        Database(Path(folder)).connect().close()
    except NotAnIndexError:
        return False
    return True


def require_free(folder: Path) -> None:
    """Raise an error unless a folder is new, empty, or left by a creation that was interrupted."""
    if folder.exists() and not folder.is_dir():
        raise NotAnIndexError(f"{folder} is a file: choose a folder for the index.")
    try:
        others = sorted({e.name for e in folder.iterdir()} - IGNORED) if folder.exists() else []
    except OSError as error:
        raise AnchorFoldError(f"{folder} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    if others:
        raise NotAnIndexError(
            f"{folder} is not an AnchorFold index and not empty (it contains {others[0]}): choose another folder."
        )


def require_target(folder: Path) -> None:
    """Raise an error for a folder that neither is an index nor may become one."""
    if not is_there(folder):
        is_index(folder)  # raises an error for an index of an older version
        require_free(folder)


def make_folder(folder: Path) -> None:
    """Create the folder of a new index."""
    require_free(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AnchorFoldError(f"{folder} cannot be created: {(error.strerror or str(error)).lower()}.") from error
