"""Connections to PostgreSQL: address, credentials, reuse, and errors that a user can act on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from anchorfold.databases.urls import keyring_password, without_password
from anchorfold.errors import (
    AnchorFoldError,
    DiskFullError,
    FilterError,
    InvalidArgumentError,
    MissingExtraError,
    NotAnIndexError,
    StoreError,
)
from anchorfold.storage.threads import ForkSafeLock

try:
    import psycopg
    from psycopg import errors, sql
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:
    raise MissingExtraError("psycopg (for PostgreSQL)", "postgres", error) from None

DEFAULT_SCHEMA = "anchorfold"
CONNECT_SECONDS = 10
IDLE_CONNECTIONS = 8  # kept for reuse per store object
Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True)
class Address:
    """A URL such as `postgresql://user@host/db?schema=reports`; its parts are not printed.

    Missing parts come from the PG* environment variables and the password file of libpq, then from the keyring.
    """

    url: str = field(repr=False)

    @property
    def location(self) -> str:
        """The URL without password."""
        return without_password(self.url)

    @cached_property
    def schema(self) -> str:
        """The schema that contains the index."""
        chosen = dict(self._options).get("schema") or DEFAULT_SCHEMA
        if chosen.startswith("pg_") or "\0" in chosen:
            raise InvalidArgumentError(f"{self.location}: PostgreSQL reserves the schema {chosen!r}: choose another.")
        return chosen

    @cached_property
    def _options(self) -> list[tuple[str, str]]:
        return parse_qsl(urlsplit(self.url).query, keep_blank_values=True)

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """Parameters of libpq."""
        try:
            parts = urlsplit(self.url)
            others = [option for option in self._options if option[0] not in ("schema", "table")]
            plain = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(others), ""))
            known = {"connect_timeout": CONNECT_SECONDS, **conninfo_to_dict(plain)}
        except (psycopg.Error, ValueError):  # whose message may contain the password
            raise InvalidArgumentError(
                f"{self.location} is not a valid PostgreSQL URL: write postgresql://user@host:5432/database?schema=name,"
                " with special characters of a password percent-encoded."
            ) from None
        return {**known, "application_name": "anchorfold"}

    def connect(self) -> Connection:
        """Open a connection in autocommit mode.

        Raises:
            StoreError: the server does not answer, or refuses.
        """
        try:
            connection = self._open({})
        except psycopg.OperationalError as error:
            password = self._keyring_password() if "no password supplied" in str(error) else None
            if password is None:
                raise self.explain(error) from None
            try:
                connection = self._open({"password": password})
            except psycopg.OperationalError as second:
                raise self.explain(second) from None
        row = connection.execute(
            "SELECT nspname FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace WHERE extname = 'vector'"
        ).fetchone()
        schemas = dict.fromkeys([self.schema, row[0] if row else "public", "public"])
        path = sql.SQL(", ").join(map(sql.Identifier, schemas)).as_string(connection)
        connection.execute("SELECT set_config('search_path', %s, false)", (path,))
        return connection

    def _open(self, more: dict[str, Any]) -> Connection:
        return psycopg.connect(**{**self.parameters, **more}, autocommit=True)

    def _keyring_password(self) -> str | None:
        """Return a password stored with `keyring set postgresql://HOST/DATABASE USER`."""
        known = self.parameters
        host = known.get("host") or os.environ.get("PGHOST", "localhost")
        user = known.get("user") or os.environ.get("PGUSER", "")
        database = known.get("dbname") or os.environ.get("PGDATABASE") or user
        return keyring_password(f"postgresql://{host}/{database}", str(user))

    def explain(self, error: psycopg.Error) -> AnchorFoldError:
        """Translate an error of the driver or the server."""
        where, reason = self.location, _reason(error)
        match error:
            case errors.UndefinedTable() | errors.InvalidSchemaName() | errors.UndefinedColumn():
                return not_there(where)
            case errors.DiskFull() | errors.OutOfMemory():
                return DiskFullError(
                    f"the disk of {where} is full: what was committed is safe. Free some space and run the command "
                    "again."
                )
            case errors.QueryCanceled():
                return FilterError("the filter took longer than 10 seconds: use a simpler one.")
            case errors.InsufficientPrivilege():
                return StoreError(f"{where} cannot be read or written ({reason}): grant the user that permission.")
            case psycopg.OperationalError() | psycopg.InterfaceError():
                return StoreError(
                    f"{where} cannot be reached ({reason}): check the address and the password (URL, PGPASSWORD, "
                    "~/.pgpass or the keyring), and run the command again to continue."
                )
        return StoreError(f"{where} cannot be read or written ({reason}).")


def _reason(error: psycopg.Error) -> str:
    """Return the first line of an error, which never contains a password."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    return lines[-1 if "connection" in (lines or [""])[0] else 0].strip().rstrip(".")[:200] if lines else "unknown"


def not_there(location: str) -> NotAnIndexError:
    """Return the error for a schema without an index."""
    return NotAnIndexError(f"{location} contains no index: create it with `anchorfold index FILES -o '{location}'`.")


class Connections:
    """Reusable connections to one address. Thread-safe; a forked child opens its own."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._lock, self._process = ForkSafeLock(), os.getpid()
        self._idle: list[Connection] = []

    def _take(self) -> tuple[Connection, bool]:
        """Return a connection, and whether it was used before."""
        with self._lock:
            if self._process != os.getpid():  # the connections belong to the parent, which must not lose them
                self._abandoned, self._idle, self._process = self._idle, [], os.getpid()
            if self._idle:
                return self._idle.pop(), True
        return self.address.connect(), False

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection in a read-only transaction that sees one commit."""
        with self._errors():
            connection, used = self._take()
            begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
            try:
                connection.execute(begin)
            except psycopg.OperationalError:
                connection.close()
                if not used:
                    raise
                self.close()  # the server was restarted: all idle connections are lost
                connection, _ = self._take()
                connection.execute(begin)
            try:
                yield connection
            finally:
                self._return(connection)

    def _return(self, connection: Connection) -> None:
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()
        with self._lock:
            if not connection.closed and len(self._idle) < IDLE_CONNECTIONS and self._process == os.getpid():
                self._idle.append(connection)
                return
        connection.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        with database_errors(self.address):
            yield

    def close(self) -> None:
        """Close all idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


@contextmanager
def database_errors(address: Address) -> Iterator[None]:
    """Translate errors of the driver and the server."""
    try:
        yield
    except psycopg.Error as error:
        raise address.explain(error) from error
