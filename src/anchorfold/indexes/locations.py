"""Stores by location: a folder, or a URL whose scheme names the kind of database."""

from __future__ import annotations

from pathlib import Path

from anchorfold._registry import Registry
from anchorfold.databases.urls import is_url
from anchorfold.errors import NotAnIndexError
from anchorfold.retrieval.embedded_store import EmbeddedStore, check_index
from anchorfold.storage.checking import Damage
from anchorfold.storage.database import make_folder
from anchorfold.storage.database import require_target as require_folder
from anchorfold.storage.file_errors import is_there
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.lock import writer_lock
from anchorfold.storage.protocol import PageStore, StoreType

Location = str | Path
CREATION_WAIT = 30.0  # seconds to wait for another process that creates the same index
_QDRANT = "anchorfold.databases.qdrant_store:QdrantStore"
_POSTGRES = "anchorfold.databases.postgres_store:PostgresStore"
STORES: Registry[StoreType] = Registry(
    "anchorfold.stores",
    "scheme of an index URL",
    {"postgresql": _POSTGRES, "postgres": _POSTGRES, "qdrant": _QDRANT, "qdrant+https": _QDRANT},
)


def _store_type(url: str) -> StoreType:
    return STORES[url.partition("://")[0]]


def open_store(location: Location) -> PageStore:
    """Open the store of an index.

    Raises:
        NotAnIndexError: there is none.
        MissingExtraError: the driver of the database is not installed.
    """
    return _store_type(str(location)).open(str(location)) if is_url(location) else EmbeddedStore.open(Path(location))


def find_store(location: Location) -> PageStore | None:
    """Open the store of an index; return None if there is none."""
    try:
        return open_store(location)
    except NotAnIndexError:
        return None


def contains_index(location: Location) -> bool:
    """Return whether there is an index, intact or not."""
    return find_store(location) is not None if is_url(location) else is_there(Path(location))


def require_target(location: Location) -> None:
    """Raise AnchorFoldError if there is neither an index nor a place where one can be created."""
    if is_url(location):
        _store_type(str(location)).require_target(str(location))
    else:
        require_folder(Path(location))


def make_target(location: Location) -> None:
    """The same as `require_target`; creates a folder, before a model is loaded."""
    if is_url(location):
        require_target(location)
    else:
        make_folder(Path(location))


def create_store(location: Location, settings: IndexSettings) -> PageStore:
    """Create an index, or open the one that another process has created since `make_target`."""
    if is_url(location):
        return _store_type(str(location)).create(str(location), settings)
    with writer_lock(Path(location), CREATION_WAIT):
        return find_store(location) or EmbeddedStore.create(Path(location), settings)


def check_location(location: Location, fix: bool = False) -> list[Damage]:
    """Verify an index, even if it cannot be opened; with `fix`, repair it."""
    return open_store(location).check(fix) if is_url(location) else check_index(Path(location), fix)
