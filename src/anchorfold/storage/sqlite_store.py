"""Documents and pages in one SQLite database, vectors in immutable files beside it.

A commit writes and syncs a vector file, then registers it in the same SQLite transaction that inserts or replaces rows.
Readers use read transactions and take no lock; a writer holds the writer lock of the folder.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from anchorfold.errors import DamagedError, NotAnIndexError, StoreError
from anchorfold.storage import segment as segments
from anchorfold.storage.column_file import FileEntry
from anchorfold.storage.database import Database, transaction
from anchorfold.storage.file_errors import is_there, moved, not_there, storage_errors
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.lock import writer_lock
from anchorfold.storage.records import Version
from anchorfold.storage.rows import (
    insert_index,
    seal,
)
from anchorfold.storage.schema import SCHEMA_VERSION, VECTORS
from anchorfold.storage.segment import OpenSegments, Segment, copy_rows, file_header, segment_path
from anchorfold.storage.snapshot import Snapshot

T = TypeVar("T")
RETRIES = 20  # a reader starts again when a writer replaced a vector file while it was opened
FREE_SHARE = 0.1  # unused share of the database that is kept for later


class SqliteStore:
    """An index in a folder. Thread-safe, and safe to use in a forked child."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = Database(folder)
        self._segments = OpenSegments(folder)
        self._connection: sqlite3.Connection | None = None  # of the thread that holds the writer lock
        self._inode = 0
        self.settings: IndexSettings = self.read(lambda snapshot: snapshot.settings)

    @classmethod
    def create(cls, folder: Path, settings: IndexSettings) -> Self:
        """Create an index in a folder that is empty or does not exist. The caller holds the writer lock."""
        with storage_errors(folder):
            (folder / VECTORS).mkdir(parents=True, exist_ok=True)
            if is_there(folder):
                raise NotAnIndexError(f"{folder} contains an index already: choose another folder.")
            with Database(folder).building() as connection:
                insert_index(connection, secrets.token_hex(16), settings, text_complete=True)
        return cls(folder)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open an index.

        Raises:
            NotAnIndexError: the folder contains none.
        """
        if not folder.exists():
            raise not_there(folder)
        return cls(folder)

    # Reading.

    def read(self, function: Callable[[Snapshot], T]) -> T:
        """Call a function with the newest commit; again if a writer replaced vector files in the meantime."""
        for attempt in range(RETRIES):
            version = None
            try:
                with self.database.reading() as connection:
                    snapshot = Snapshot(self.folder, connection, self._segments)
                    version = snapshot.version
                    return function(snapshot)
            except DamagedError:
                if attempt == RETRIES - 1 or version is None or self.version == version:
                    raise
        raise AssertionError("unreachable")

    @property
    def version(self) -> Version:
        """The newest commit."""
        if not is_there(self.folder):
            raise moved(self.folder)
        with self.database.reading() as connection:
            return Snapshot(self.folder, connection, self._segments).version

    def refresh(self) -> Version:
        """Re-read the settings, which change when text is added or the index is re-created."""

        def current(snapshot: Snapshot) -> Version:
            if snapshot.settings != self.settings:
                self.settings = snapshot.settings
            return snapshot.version

        return self.read(current)

    # Writing.

    @contextmanager
    def writing(
        self, wait: float = -1, waiting: Callable[[str], None] | None = None, stop: Callable[[], bool] | None = None,
        sources: Collection[str] | None = None,
    ) -> Iterator[None]:  # fmt: skip
        """Hold the writer lock.

        Args:
            wait: seconds to wait for another writer; negative waits indefinitely.
            waiting: called once with a message if the lock is held by another process.
            stop: polled while waiting; True gives up.
            sources: has no effect, because one lock protects all documents.

        Raises:
            LockedError: another process holds the lock.
        """
        with writer_lock(self.folder, wait, waiting, stop), self.writing_unlocked():
            yield

    @contextmanager
    def writing_unlocked(self) -> Iterator[None]:
        """The same for a caller that holds the writer lock already."""
        self.refresh()
        with closing(self.database.connect(write=True)) as connection:
            with storage_errors(self.folder):
                self._inode = os.stat(self.database.path).st_ino
                # A writer that was killed during a commit may have left all of it in the write-ahead log without
                # announcing it: readers do not see it, and a recovery of the log would complete it later, after its
                # vector file was removed. Any commit overwrites it.
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._connection = connection
            try:
                yield
            finally:
                self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[Snapshot]:
        """One commit, with the commit before it as a snapshot. The caller holds the writer lock."""
        if self._connection is None:
            raise RuntimeError("a write needs the writer lock: use `with store.writing():`")
        connection = self._connection
        with storage_errors(self.folder), transaction(connection):
            if os.stat(self.database.path).st_ino != self._inode:
                raise StoreError(f"{self.folder} was replaced while it was being written: run the command again.")
            yield Snapshot(self.folder, connection, self._segments)
            seal(connection)

    def register(
        self,
        snapshot: Snapshot,
        write: Callable[[Path, dict[str, Any]], FileEntry | None],
        replaces: Sequence[int] = (),
    ) -> None:
        """Write a vector file with the next free number and register it instead of others, within a transaction."""
        execute = snapshot.connection.execute
        number = execute("INSERT INTO vector_files (pages, bytes, checksum) VALUES (0, 0, 0)").lastrowid
        assert number is not None
        header = file_header(snapshot.version.index_id, snapshot.settings)
        entry = write(segment_path(self.folder, number), header)
        for unused in (*replaces, *([number] if entry is None else [])):
            execute("DELETE FROM vector_files WHERE id = ?", (unused,))
        if entry is not None:
            values = (entry.rows, entry.bytes, entry.checksum, number)
            execute("UPDATE vector_files SET pages = ?, bytes = ?, checksum = ? WHERE id = ?", values)

    def announce(self) -> None:
        """Commit without a change, so that open readers load derived files."""
        with self.transaction():
            pass

    # Maintenance.

    def tidy(self) -> None:
        """Merge small vector files, rewrite those with many unused rows, and remove files that are not registered."""

        def with_garbage(snapshot: Snapshot) -> list[int]:
            needed, opened = _needed(snapshot), snapshot.segments()
            most = 1 - segments.GARBAGE
            return [n for n, s in opened.items() if len(s) and needed[s.version].sum() <= most * len(s)]

        for number in self.read(with_garbage):
            self._merge([number])
        self._merge_tiers()
        self.remove_unregistered()
        assert self._connection is not None
        free, pages = (self._connection.execute(f"PRAGMA {n}_count").fetchone()[0] for n in ("freelist", "page"))
        if free > pages * FREE_SHARE:
            self._connection.executescript("PRAGMA incremental_vacuum")  # `execute` would stop after one page

    def _merge_tiers(self) -> None:
        while groups := self.read(lambda snapshot: segments.tiers_to_merge(snapshot.files)):
            for members in groups:
                self._merge(members)

    def _merge(self, members: Sequence[int]) -> None:
        """Replace vector files by one, in one commit; the old files are removed afterwards."""
        with self.transaction() as snapshot:
            needed, opened = _needed(snapshot), snapshot.segments()
            merged = [opened[number] for number in members]
            for segment in merged:
                _ = segment.codes, segment.scales  # verified before they are copied
            chosen = [np.flatnonzero(needed[segment.version]) for segment in merged]
            documents = snapshot.versions_by_id(version for segment in merged for version in segment.documents())
            self.register(
                snapshot,
                lambda path, header: copy_rows(path, merged, chosen, documents.values(), header) if documents else None,
                members,
            )
        with storage_errors(self.folder):
            for number in members:
                segment_path(self.folder, number).unlink(missing_ok=True)

    def remove_unregistered(self) -> None:
        """Remove vector files of this index that are not registered: left by a writer that was killed."""
        connection = self._connection
        assert connection is not None
        with storage_errors(self.folder), transaction(connection):
            index_id = connection.execute("SELECT index_id FROM index_info").fetchone()[0]
            known = {f"{number:08}" for (number,) in connection.execute("SELECT id FROM vector_files")}
            for path in sorted((self.folder / VECTORS).iterdir()):
                if path.suffix == ".seg" and path.stem not in known and _belongs(path, index_id):
                    path.unlink(missing_ok=True)


def _needed(snapshot: Snapshot) -> np.ndarray:
    """Return `(ids,)` true for versions that exist, live or staged."""
    ids = np.fromiter((n for (n,) in snapshot.connection.execute("SELECT id FROM versions")), np.int64)
    most = max([0, int(ids.max(initial=0)), *(int(s.version.max(initial=0)) for s in snapshot.segments().values())])
    needed = np.zeros(most + 1, bool)
    needed[ids] = True
    return needed


def _belongs(path: Path, index_id: str) -> bool:
    """Return whether a vector file was written for this index, or is incomplete."""
    try:
        return bool(Segment(path).header["index_id"] == index_id)
    except (DamagedError, KeyError):
        return True
