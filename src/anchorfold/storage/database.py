"""Connections to `index.db`, and folders that contain one.

Every operation opens its own connection and closes it. Nothing is shared between threads, nothing survives a fork, and
a file that was replaced (a restored backup, a re-created index) is detected by the next operation.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path

from anchorfold.errors import AnchorFoldError, MismatchError, NotAnIndexError, StoreError
from anchorfold.storage.file_errors import (
    damaged,
    has_vector_files,
    is_there,
    moved,
    raw_database,
    sqlite_errors,
    storage_errors,
    sync,
)
from anchorfold.storage.lock import HOLDER_FILE, LOCK_FILE
from anchorfold.storage.schema import (
    APPLICATION_ID,
    DATABASE,
    SCHEMA,
    SCHEMA_VERSION,
    SETUP,
    TRIGGERS,
    VECTORS,
    row_checksum,
)

BUSY_SECONDS = 60.0  # to wait for a transaction of another process
MOST_FORMAT = 2  # file formats of SQLite for writing and reading: 1 is a rollback journal, 2 a write-ahead log
PART = f"{DATABASE}.part"
COMPANIONS = ("-journal", "-wal", "-shm")
# Left by a creation that was interrupted, and by macOS.
IGNORED = {PART, *(PART + suffix for suffix in COMPANIONS), VECTORS, LOCK_FILE, HOLDER_FILE, ".DS_Store"}
SETTINGS = ("synchronous = full", "fullfsync = on", "cell_size_check = on", "trusted_schema = off", "foreign_keys = on")
NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs",
    "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.gcsfuse", "fuse.s3fs", "fuse.juicefs",
}  # fmt: skip


class Database:
    """The SQLite file of the index in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / DATABASE

    @contextmanager
    def building(self) -> Iterator[sqlite3.Connection]:
        """Fill a new database and put it in place when the block ends: a crash leaves no half-created schema.

        Its contents are copied into an existing database in one transaction. A file must not be swapped while another
        process may open it: SQLite finds the write-ahead log and the shared memory by name, so that connections to the
        old and to the new file would share them.
        """
        part = self.folder / PART
        try:
            for suffix in ("", *COMPANIONS):
                Path(f"{part}{suffix}").unlink(missing_ok=True)
            with closing(_connect(part, "rwc")) as connection:
                connection.executescript(f"{SETUP} BEGIN IMMEDIATE; {SCHEMA} {TRIGGERS}")
                yield connection
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                connection.execute("COMMIT")
                # Last: SQLite ignores errors when it closes a write-ahead log, and here there is nothing in it.
                connection.execute(f"PRAGMA journal_mode = {journal_mode(self.folder)}")
            if not self._overwrite(part):
                sync(part)
                for suffix in COMPANIONS:  # of a file that is gone or no database: no process can open it
                    Path(f"{self.path}{suffix}").unlink(missing_ok=True)
                os.replace(part, self.path)
        finally:
            for suffix in ("", *COMPANIONS):
                Path(f"{part}{suffix}").unlink(missing_ok=True)
        sync(self.folder)

    def _overwrite(self, part: Path) -> bool:
        """Copy a database over the existing one; False if there is none that SQLite can open."""
        if not self.path.exists():
            return False
        with raw_database(self.path) as file:
            write_format, read_format = file.read(20)[18:].ljust(2, b"\0")
            if write_format > MOST_FORMAT >= read_format:  # a flipped bit: SQLite can read it and cannot write to it
                file.seek(18)
                file.write(bytes([read_format]))
        with closing(_connect(part, "rw")) as new, closing(sqlite3.connect(self.path, BUSY_SECONDS)) as old:
            try:
                old.execute("PRAGMA fullfsync = on")
                new.backup(old)
            except sqlite3.DatabaseError as error:
                code = error.sqlite_errorcode & 0xFF
                # The last one: another page size, hence no database of an index.
                if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_READONLY):
                    return False
                raise
        return True

    def connect(self, write: bool = False, check: bool = True) -> sqlite3.Connection:
        """Open a connection, with `check` after checking that the file is an index of this version.

        A reader of a read-only folder opens the file as immutable, because SQLite cannot create its shared memory.
        """
        with storage_errors(self.folder):
            if not self.path.exists():
                raise self._missing()
            if not check:
                return _connect(self.path, "rw")
            if not self.path.stat().st_size:
                raise damaged(self.folder, f"{DATABASE} is empty")
            try:
                return self._checked(_connect(self.path, "rw"), write)
            except sqlite3.OperationalError as error:
                if write or os.access(self.folder, os.W_OK):
                    raise
                if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                    raise
            wal = Path(f"{self.path}-wal")
            if wal.exists() and wal.stat().st_size:
                raise StoreError(
                    f"{self.folder} is read-only and was not closed after its last change: open it once where it can "
                    "be written, then copy it again."
                )
            return self._checked(_connect(self.path, "ro&immutable=1"), write)

    def _checked(self, connection: sqlite3.Connection, write: bool) -> sqlite3.Connection:
        try:
            application, schema = (
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            )
            if application != APPLICATION_ID and has_vector_files(self.folder):
                raise damaged(self.folder, f"{DATABASE} has the application id {application:#x}")
            if application != APPLICATION_ID:
                raise NotAnIndexError(f"{self.folder} is not an AnchorFold index: its {DATABASE} is another database.")
            if schema != SCHEMA_VERSION:
                flipped = (schema ^ SCHEMA_VERSION).bit_count() == 1 and has_schema(connection)
                raise self._other_schema(schema, flipped)
            if not write:
                connection.execute("PRAGMA query_only = on")
                return connection
            if journal_mode(self.folder) != "wal":
                connection.execute("PRAGMA journal_mode = delete")
            connection.executescript(TRIGGERS)
        except BaseException:
            connection.close()
            raise
        return connection

    def _other_schema(self, schema: int, flipped: bool) -> AnchorFoldError:
        if flipped:
            return damaged(self.folder, f"{DATABASE} has schema version {schema} instead of {SCHEMA_VERSION}")
        age, advice = (
            ("a newer", "upgrade anchorfold")
            if schema > SCHEMA_VERSION
            else ("an older", "index the documents into a new folder")
        )
        return MismatchError(
            f"{self.folder} was created by {age} version of anchorfold (schema {schema}; this version reads "
            f"{SCHEMA_VERSION}): {advice}."
        )

    def _missing(self) -> AnchorFoldError:
        if has_vector_files(self.folder):
            return damaged(self.folder, f"{DATABASE} is missing")
        if (self.folder / "head").exists() and (self.folder / "logs").is_dir():
            return MismatchError(
                f"{self.folder} was created by anchorfold 0.2, whose format is no longer read: index the documents "
                "into a new folder."
            )
        if not self.folder.exists():
            return moved(self.folder)
        return NotAnIndexError(f"{self.folder} is not an AnchorFold index.")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A read transaction: all queries in it see one commit."""
        with closing(self.connect()) as connection, sqlite_errors(self.folder):
            connection.execute("BEGIN")
            yield connection


def has_schema(connection: sqlite3.Connection) -> bool:
    """Return whether the tables of a database are those of this version."""
    query = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'text_index_%' AND sql IS NOT NULL ORDER BY name"
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        fresh.executescript(SCHEMA)
        expected = fresh.execute(query).fetchall()
    return connection.execute(query).fetchall() == expected


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """A write transaction: committed when the block ends, rolled back on any error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    address = f"{path.absolute().as_uri()}?mode={mode}"
    connection = sqlite3.connect(
        address, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    try:
        connection.create_function("row_checksum", -1, row_checksum, deterministic=True)
        for setting in SETTINGS:
            connection.execute(f"PRAGMA {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


def journal_mode(folder: Path) -> str:
    """Return `wal`, or `delete` where WAL is unsafe: its shared memory does not work across machines.

    The environment variable ANCHORFOLD_JOURNAL (wal or delete) overrides the detection.
    """
    chosen = os.environ.get("ANCHORFOLD_JOURNAL", "").lower()
    if chosen in ("wal", "delete"):
        return chosen
    return "delete" if file_system(os.stat(folder).st_dev) in NETWORK else "wal"


@lru_cache(64)
def file_system(device: int) -> str:
    """Return the type of the file system with this device number, such as ext4; empty if unknown (not on Linux)."""
    if not hasattr(os, "major"):  # Windows
        return ""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo") as file:
            mounts = [line.partition(" - ") for line in file]
    except OSError:
        return ""
    return next((kind.split()[0] for mount, _, kind in mounts if mount.split()[2] == number), "")


def is_index(folder: str | Path) -> bool:
    """Return whether a folder contains an index that can be opened."""
    try:
        Database(Path(folder)).connect().close()
    except NotAnIndexError:
        return False
    return True


def require_target(folder: Path) -> None:
    """Raise an error for a folder that neither is an index nor may become one."""
    if is_there(folder):
        return
    is_index(folder)  # raises an error for an index of an older version
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


def make_folder(folder: Path) -> None:
    """Create the folder of a new index."""
    require_target(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AnchorFoldError(f"{folder} cannot be created: {(error.strerror or str(error)).lower()}.") from error
