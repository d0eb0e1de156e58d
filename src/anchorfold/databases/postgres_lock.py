"""Exclusion of writers in PostgreSQL: advisory locks of the session, and claims of documents.

A writer of the whole index holds an exclusive lock, writers of some documents a shared one. The latter also register
their documents in the table `claims` under a number on which they hold a lock: a writer whose session has ended holds
none, and its claims are void.
"""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager

from anchorfold.databases.postgres_connection import Address, Connection, database_errors
from anchorfold.errors import LockedError, StoreError

POLL_SECONDS = 0.2
_VOID = """
DELETE FROM claims WHERE NOT EXISTS (
  SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND (classid::bigint << 32 | objid::bigint) = claims.writer)
"""


def lock_key(address: Address, index_id: str) -> int:
    """Return the advisory lock of an index."""
    return zlib.crc32(f"anchorfold:{address.schema}".encode()) << 31 | zlib.crc32(index_id.encode()) >> 1


@contextmanager
def writer_connection(
    address: Address,
    index_id: str,
    wait: float,
    waiting: Callable[[str], None] | None,
    stop: Callable[[], bool] | None,
    sources: Collection[str] | None,
) -> Iterator[Connection]:
    """Yield the connection that holds the lock; the arguments are those of `PageStore.writing`."""
    key, writer = lock_key(address, index_id), secrets.randbits(62)
    deadline, told = time.monotonic() + wait, False
    with database_errors(address), closing(address.connect()) as connection:
        while not _try(connection, key, writer, sources):
            if (wait >= 0 and time.monotonic() >= deadline) or (stop is not None and stop()):
                raise LockedError(f"{address.location} is being written by another process: try again later.")
            if waiting is not None and not told:
                waiting(f"{address.location} is being written by another process: waiting.")
                told = True
            time.sleep(POLL_SECONDS)
        try:
            yield connection
        finally:
            if not connection.closed and sources is not None:
                connection.execute("DELETE FROM claims WHERE writer = %s", (writer,))


def _try(connection: Connection, key: int, writer: int, sources: Collection[str] | None) -> bool:
    """Try to take the lock, and to claim documents."""
    shared = "" if sources is None else "_shared"
    if not _value(connection, f"SELECT pg_try_advisory_lock{shared}(%s)", key):
        return False
    if sources is None:
        return True
    connection.execute("SELECT pg_advisory_lock(%s)", (writer,))
    with connection.transaction():
        connection.execute("LOCK TABLE claims IN EXCLUSIVE MODE")
        connection.execute(_VOID)
        paths = list(sources)
        if not _value(connection, "SELECT EXISTS (SELECT 1 FROM claims WHERE path = ANY(%s))", paths):
            connection.execute("INSERT INTO claims (path, writer) SELECT unnest(%s::text[]), %s", (paths, writer))
            return True
    connection.execute("SELECT pg_advisory_unlock(%s), pg_advisory_unlock_shared(%s)", (writer, key))
    return False


def _value(connection: Connection, query: str, *parameters: object) -> object:
    row = connection.execute(query, parameters).fetchone()
    if row is None:
        raise StoreError("PostgreSQL returned no row.")
    return row[0]
