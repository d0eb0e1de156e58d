"""Documents and pages in one SQLite database, vectors in immutable files beside it.

A commit writes and syncs a vector file, then registers it in the same SQLite transaction that inserts or replaces rows.
Readers use read transactions and take no lock; a writer holds the writer lock of the folder.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from anchorfold.errors import DamagedError, NotAnIndexError, StoreError
from anchorfold.index.store.column_file import FileEntry, write_columns
from anchorfold.index.store.database import Database, transaction
from anchorfold.index.store.faults import has_vector_files, is_there, moved, not_there, storage_errors
from anchorfold.index.store.lock import writer_lock
from anchorfold.index.store.merging import tiers_to_merge, with_garbage, write_rows
from anchorfold.index.store.public_names import public_name
from anchorfold.index.store.records import DocumentState, PageRow, PageText, Plain, Version, merged_metadata
from anchorfold.index.store.schema import VECTORS, page_id, page_range
from anchorfold.index.store.segment import OpenSegments, Segment, file_header, page_columns, segment_path
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.store.snapshot import Snapshot
from anchorfold.index.store.tables import (
    delete_versions,
    index_texts,
    insert_index,
    insert_pages,
    insert_payload,
    insert_text,
    read_document,
    seal,
    unindex_texts,
    write_document,
    write_version,
)

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
            if has_vector_files(folder):
                raise NotAnIndexError(f"{folder} contains vector files already: choose another folder.")
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
                if version is None or attempt == RETRIES - 1 or self.version == version:
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
            if snapshot.settings != getattr(self, "settings", None):
                self.settings = snapshot.settings
            return snapshot.version

        return self.read(current)

    def documents(self) -> dict[str, DocumentState]:
        """The state of every document by path."""
        return self.read(Snapshot.documents)

    def stored_pages(self, sources: Sequence[str]) -> dict[str, dict[str, set[int]]]:
        """Numbers of stored pages by path and digest."""
        return self.read(lambda snapshot: snapshot.stored_pages(sources))

    # Writing.

    @contextmanager
    def writing(
        self,
        wait: float = -1,
        waiting: Callable[[str], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[None]:
        """Hold the writer lock.

        Args:
            wait: seconds to wait for another writer; negative waits indefinitely.
            waiting: called once with a message if the lock is held by another process.
            stop: polled while waiting; True gives up.

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
            self._connection = connection
            try:
                yield
            finally:
                self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One commit. The caller holds the writer lock."""
        if self._connection is None:
            raise RuntimeError("a write needs the writer lock: use `with store.writing():`")
        connection = self._connection
        with storage_errors(self.folder), transaction(connection):
            if os.stat(self.database.path).st_ino != self._inode:
                raise StoreError(f"{self.folder} was replaced while it was being written: run the command again.")
            yield connection
            seal(connection)

    def _snapshot(self, connection: sqlite3.Connection) -> Snapshot:
        return Snapshot(self.folder, connection, self._segments)

    def append(self, rows: Sequence[PageRow]) -> None:
        """Add pages in one commit; documents that are new are inserted with them."""
        if not rows:
            return
        with self.transaction() as connection:
            snapshot = self._snapshot(connection)
            versions = self._version_ids(connection, rows)
            documents = snapshot.versions_by_id(versions)
            columns = page_columns(rows, versions, documents, snapshot.settings)
            self.register(connection, lambda path, header: write_columns(path, len(rows), columns, header))
            insert_pages(connection, rows, versions, snapshot.settings)
        self._merge_tiers()

    def _version_ids(self, connection: sqlite3.Connection, rows: Sequence[PageRow]) -> list[int]:
        """The version id of each page; documents and versions that are new are inserted."""

        def taken(name: str) -> bool:
            return connection.execute("SELECT 1 FROM documents WHERE public_name = ?", (name,)).fetchone() is not None

        known: dict[tuple[str, str], int] = {}
        for row in rows:
            key = (row.source, row.digest)
            if key in known:
                continue
            found = connection.execute(
                "SELECT id, metadata, name, public_name FROM documents WHERE path = ?", key[:1]
            ).fetchone()
            if found is None:
                public = public_name(row.document, taken)
                document = write_document(
                    connection, None, row.source, row.document, public, merged_metadata({}, row.metadata)
                )
            else:
                document, metadata, name, public = found
                merged = merged_metadata(json.loads(metadata), row.metadata)
                write_document(connection, document, row.source, name, public, merged)
            version = connection.execute(
                "SELECT id FROM versions WHERE document_id = ? AND digest = ?", (document, row.digest)
            ).fetchone()
            known[key] = version[0] if version else write_version(connection, None, document, row)
        return [known[row.source, row.digest] for row in rows]

    def register(
        self,
        connection: sqlite3.Connection,
        write: Callable[[Path, dict[str, Any]], FileEntry | None],
        replaces: Sequence[int] = (),
    ) -> None:
        """Write a vector file with the next free number and register it instead of others, within a transaction."""
        index_id, settings = connection.execute("SELECT index_id, settings FROM index_info").fetchone()
        number = connection.execute("INSERT INTO vector_files (pages, bytes, checksum) VALUES (0, 0, 0)").lastrowid
        assert number is not None
        header = file_header(index_id, IndexSettings.from_dict(json.loads(settings)))
        entry = write(segment_path(self.folder, number), header)
        connection.executemany("DELETE FROM vector_files WHERE id = ?", ((old,) for old in replaces))
        if entry is None:
            connection.execute("DELETE FROM vector_files WHERE id = ?", (number,))
        else:
            connection.execute(
                "UPDATE vector_files SET pages = ?, bytes = ?, checksum = ? WHERE id = ?",
                (entry.rows, entry.bytes, entry.checksum, number),
            )

    def promote(self, source: str, digest: str, size: int, modified: int) -> None:
        """Replace a document by its staged version in one commit; size and time are those of the file now."""
        with self.transaction() as connection:
            versions = list(self._snapshot(connection).versions("d.path = ?", (source,)))
            delete_versions(connection, [v for v in versions if v.digest != digest])
            for version in versions:
                if version.digest == digest:
                    write_version(
                        connection,
                        version.id,
                        version.document_id,
                        replace(version, live=True, size=size, modified=modified),
                    )
                    if not version.live:
                        index_texts(connection, version.id)
                        connection.execute(
                            "UPDATE index_info SET text_complete = 0 WHERE EXISTS (SELECT 1 FROM pages WHERE id >= ? "
                            "AND id < ? AND vectors > 0 AND id NOT IN (SELECT page_id FROM texts))",
                            page_range(version.id),
                        )

    def touch(self, source: str, size: int, modified: int) -> None:
        """Store the size and time of a document whose file was written again with the same content."""
        with self.transaction() as connection:
            for version in list(self._snapshot(connection).versions("d.path = ? AND v.live", (source,))):
                write_version(
                    connection, version.id, version.document_id, replace(version, size=size, modified=modified)
                )

    def move(self, sources: Mapping[str, str]) -> None:
        """Change paths of documents, from old to new, in one commit."""
        if not sources:
            return
        with self.transaction() as connection:
            for old, new in sources.items():
                found = read_document(connection, old)
                if found is not None:
                    identity, name, public, metadata = found
                    write_document(connection, identity, new, name, public, metadata)

    def remove(self, sources: Iterable[str]) -> None:
        """Delete documents in one commit."""
        self._drop(sources, "d.path = ?")

    def drop_staged(self, sources: Iterable[str]) -> None:
        """Delete versions of documents that never became live, in one commit."""
        self._drop(sources, "d.path = ? AND NOT v.live")

    def _drop(self, sources: Iterable[str], where: str) -> None:
        chosen = sorted(set(sources))
        if not chosen:
            return
        with self.transaction() as connection:
            snapshot = self._snapshot(connection)
            delete_versions(connection, [v for source in chosen for v in snapshot.versions(where, (source,))])

    def set_metadata(self, values: Mapping[str, Mapping[str, Plain | None]], types: Mapping[str, str]) -> int:
        """Set metadata values by path and column in one commit; None removes a value.

        Args:
            values: by path and column.
            types: types of all columns in it. A column that no document uses any more is removed.

        Returns:
            The number of documents that changed.
        """
        if not values and not types:
            return 0
        documents, unused = self.read(lambda snapshot: _metadata_changes(snapshot.connection, values, types))
        known = self.read(lambda snapshot: snapshot.given_columns)
        if not documents and not unused & known.keys() and types.items() <= known.items():
            return 0  # no commit: open readers keep what they have in memory
        with self.transaction() as connection:
            for identity, source, name, public, metadata in documents:
                write_document(connection, identity, source, name, public, metadata)
            upsert = "INSERT INTO metadata_columns VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET type = excluded.type"
            connection.executemany(upsert, types.items())
            connection.executemany("DELETE FROM metadata_columns WHERE name = ?", ((name,) for name in unused))
        return len(documents)

    def enable_text(self, ocr: bool) -> None:
        """Store the text of pages from now on, with `ocr` also of pages without a text layer."""
        with self.transaction() as connection:
            settings = replace(self._snapshot(connection).settings, text=True, ocr=ocr)
            connection.execute("UPDATE index_info SET settings = ?, text_complete = 0", (json.dumps(asdict(settings)),))
        self.refresh()

    def put_texts(
        self, source: str, digest: str, texts: Mapping[int, PageText], thumbnails: Mapping[int, bytes] | None = None
    ) -> None:
        """Store texts (and missing thumbnails) of pages of a live document, by page number, in one commit."""
        with self.transaction() as connection:
            for version in list(
                self._snapshot(connection).versions("d.path = ? AND v.digest = ? AND v.live", (source, digest))
            ):
                identities = {page_id(version.id, number): text for number, text in texts.items()}
                unindex_texts(connection, version.id, list(identities))
                for identity, text in identities.items():
                    insert_text(connection, identity, text)
                index_texts(connection, version.id, list(identities))
                for number, image in (thumbnails or {}).items():
                    if image:
                        insert_payload(connection, page_id(version.id, number), image, None)

    def set_text_complete(self) -> None:
        """Record that every stored page has its text."""
        with self.transaction() as connection:
            connection.execute("UPDATE index_info SET text_complete = 1")

    def announce(self) -> None:
        """Commit without a change, so that open readers load derived files."""
        with self.transaction():
            pass

    # Maintenance.

    def tidy(self) -> None:
        """Merge small vector files, rewrite those with many unused rows, and remove files that are not registered."""
        needed = self.read(self._needed)
        for number in self.read(lambda snapshot: with_garbage(snapshot.segments(), needed)):
            self._merge([number])
        self._merge_tiers()
        self.remove_unregistered()
        assert self._connection is not None
        free, pages = (self._connection.execute(f"PRAGMA {n}_count").fetchone()[0] for n in ("freelist", "page"))
        if free > pages * FREE_SHARE:
            self._connection.executescript("PRAGMA incremental_vacuum")  # `execute` would stop after one page

    @staticmethod
    def _needed(snapshot: Snapshot) -> np.ndarray:
        """`(ids,)` true for versions that exist, live or staged."""
        ids = np.fromiter((n for (n,) in snapshot.connection.execute("SELECT id FROM versions")), np.int64)
        most = max([0, int(ids.max(initial=0)), *(int(s.version.max(initial=0)) for s in snapshot.segments().values())])
        needed = np.zeros(most + 1, bool)
        needed[ids] = True
        return needed

    def _merge_tiers(self) -> None:
        while groups := self.read(lambda snapshot: tiers_to_merge(snapshot.files)):
            for members in groups:
                self._merge(members)

    def _merge(self, members: Sequence[int]) -> None:
        """Replace vector files by one, in one commit; the old files are removed afterwards."""
        with self.transaction() as connection:
            snapshot = self._snapshot(connection)
            needed, opened = self._needed(snapshot), snapshot.segments()
            segments = [opened[number] for number in members]
            for segment in segments:
                _ = segment.codes, segment.scales  # verified before they are copied
            chosen = [np.flatnonzero(needed[segment.version]) for segment in segments]
            used = {v for segment, rows in zip(segments, chosen, strict=True) for v in segment.version[rows].tolist()}
            documents = snapshot.versions_by_id(used)
            self.register(
                connection, lambda path, header: write_rows(path, segments, chosen, documents, header), members
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


def _belongs(path: Path, index_id: str) -> bool:
    """Whether a vector file was written for this index, or is incomplete."""
    try:
        return bool(Segment(path).header["index_id"] == index_id)
    except (DamagedError, KeyError):
        return True


def _metadata_changes(
    connection: sqlite3.Connection, values: Mapping[str, Mapping[str, Plain | None]], types: Mapping[str, str]
) -> tuple[list[tuple[int, str, str, str, dict[str, Plain]]], set[str]]:
    """Rows of documents whose metadata changes, and columns without types that no document uses afterwards."""
    documents: dict[str, tuple[int, str, str, str, dict[str, Plain]]] = {}
    for source, given in values.items():
        found = read_document(connection, source)
        if found is None:
            continue
        identity, name, public, before = found
        after = merged_metadata(before, given)
        if json.dumps(after, sort_keys=True) != json.dumps(before, sort_keys=True):  # true, 1 and 1.0 differ
            documents[source] = (identity, source, name, public, after)
    users = "SELECT documents.path FROM documents, json_each(documents.metadata) WHERE key = ?"
    cleared = {name for given in values.values() for name, value in given.items() if value is None} - types.keys()
    unused = {
        name
        for name in cleared
        if all(path in documents and name not in documents[path][4] for (path,) in connection.execute(users, (name,)))
    }
    return list(documents.values()), unused
