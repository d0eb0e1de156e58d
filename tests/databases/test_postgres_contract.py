"""The PostgreSQL store passes the contract that the embedded store passes, on a real server."""

import pytest

from anchorfold.testing.contracts import STORE_SETTINGS, StoreContract

pytest.importorskip("psycopg")


class TestPostgresStore(StoreContract):
    many_writers = True

    @pytest.fixture
    def open_store(self, postgres_url):
        from anchorfold.databases.postgres_store import PostgresStore

        PostgresStore.create(postgres_url, STORE_SETTINGS)
        return lambda: PostgresStore.open(postgres_url)
