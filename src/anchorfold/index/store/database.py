"""Connections to `index.db`.

Every operation opens a connection of its own and closes it. Nothing is shared between threads, nothing survives a
fork, and a file that was replaced (a restored backup, a re-created index) is seen by the next operation.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import lru_cache
from pathlib import Path

from anchorfold.errors import AnchorFoldError, MismatchError, NotAnIndexError, StoreError
from anchorfold.index.store.durable import sync_file, sync_folder
from anchorfold.index.store.faults import damaged, has_vector_files, moved, sqlite_errors, storage_errors
from anchorfold.index.store.schema import APPLICATION_ID, DATABASE, SCHEMA, SCHEMA_VERSION, SETUP

BUSY_SECONDS = 60.0  # to wait for a transaction of another process
NETWORK = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "gpfs", "beegfs",
    "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.gcsfuse", "fuse.s3fs", "fuse.juicefs",
}  # fmt: skip


def row_checksum(*values: object) -> int:
    """CRC-32 of the values of a row."""
    return zlib.crc32("\x1f".join(map(str, values)).encode())


class Database:
    """The SQLite file of the index in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / DATABASE

    @contextmanager
    def building(self) -> Iterator[sqlite3.Connection]:
        """Fill a new database and put it in place when the block ends: a crash leaves no half-created schema."""
        part = self.path.with_name(f"{DATABASE}.part")
        for suffix in ("", "-journal", "-wal", "-shm"):
            Path(f"{part}{suffix}").unlink(missing_ok=True)
        try:
            with closing(_connect(part, "rwc")) as connection:
                connection.executescript(SETUP)
                connection.execute("BEGIN IMMEDIATE")
                for statement in SCHEMA.split(";\n"):
                    connection.execute(statement)
                yield connection
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                connection.execute("COMMIT")
                # Last: SQLite ignores errors when it closes a write-ahead log, and here there is nothing in it.
                connection.execute(f"PRAGMA journal_mode = {journal_mode(self.folder)}")
            sync_file(part)
            os.replace(part, self.path)
        finally:
            for suffix in ("", "-journal", "-wal", "-shm"):
                Path(f"{part}{suffix}").unlink(missing_ok=True)
        sync_folder(self.folder)

    def connect(self, write: bool = False) -> sqlite3.Connection:
        """Open a connection, after checking that the file is an index of this version.

        A reader of a read-only folder opens the file as immutable, because SQLite cannot create its shared memory.
        """
        with storage_errors(self.folder):
            if not self.path.exists():
                raise self._missing()
            if not self.path.stat().st_size:
                raise damaged(self.folder, f"{DATABASE} is empty")
            try:
                return self._checked(_connect(self.path, "rw"), write)
            except sqlite3.OperationalError as error:
                code = error.sqlite_errorcode & 0xFF
                if write or os.access(self.folder, os.W_OK):
                    raise
                if code not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
                    raise
            wal = Path(f"{self.path}-wal")
            if wal.exists() and wal.stat().st_size:
                raise StoreError(
                    f"{self.folder} is read-only and was not closed after its last change: open it once where it can "
                    "be written, then copy it again."
                )
            return self._checked(_connect(self.path, "ro&immutable=1"), write)

    def connect_unchecked(self) -> sqlite3.Connection:
        """Open a connection to a file that may be damaged."""
        with storage_errors(self.folder):
            if not self.path.exists():
                raise self._missing()
            return _connect(self.path, "rw")

    def _checked(self, connection: sqlite3.Connection, write: bool) -> sqlite3.Connection:
        try:
            application, schema = (
                connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
            )
            if application != APPLICATION_ID and has_vector_files(self.folder):
                raise damaged(self.folder, f"{DATABASE} has the application id {application:#x}")
            if application != APPLICATION_ID:
                raise NotAnIndexError(f"{self.folder} is not an AnchorFold index: its {DATABASE} is another database.")
            flipped = (schema ^ SCHEMA_VERSION).bit_count() == 1 and has_schema(connection)  # a bit of the number
            if schema > SCHEMA_VERSION and not flipped:
                raise MismatchError(
                    f"{self.folder} was created by a newer version of anchorfold (schema {schema}; this version reads "
                    f"{SCHEMA_VERSION}): upgrade anchorfold."
                )
            if schema != SCHEMA_VERSION:
                raise damaged(self.folder, f"{DATABASE} has schema version {schema} instead of {SCHEMA_VERSION}")
            if not write:
                connection.execute("PRAGMA query_only = on")
            elif journal_mode(self.folder) != "wal":
                connection.execute("PRAGMA journal_mode = delete")
        except BaseException:
            connection.close()
            raise
        return connection

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
    """Whether the tables of a database are those of this version."""
    ours = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'text_index_%' AND sql IS NOT NULL ORDER BY name"
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        fresh.executescript(SCHEMA)
        expected = fresh.execute(ours).fetchall()
    return connection.execute(ours).fetchall() == expected


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
        for setting in ("synchronous = full", "fullfsync = on", "cell_size_check = on", "trusted_schema = off"):
            connection.execute(f"PRAGMA {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


def journal_mode(folder: Path) -> str:
    """`wal`, or `delete` where WAL is unsafe: its shared memory does not work across machines.

    The environment variable ANCHORFOLD_JOURNAL (wal or delete) overrides the detection.
    """
    chosen = os.environ.get("ANCHORFOLD_JOURNAL", "").lower()
    if chosen in ("wal", "delete"):
        return chosen
    return "delete" if file_system(os.stat(folder).st_dev) in NETWORK else "wal"


@lru_cache(64)
def file_system(device: int) -> str:
    """The type of the file system with this device number, such as ext4; empty if unknown (not on Linux)."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo") as file:
            mounts = [line.partition(" - ") for line in file]
    except OSError:
        return ""
    return next((kind.split()[0] for mount, _, kind in mounts if mount.split()[2] == number), "")
