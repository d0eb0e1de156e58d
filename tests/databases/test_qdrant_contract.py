"""The store contract on the local mode of qdrant-client, and over HTTP on Qdrant's engine."""

import pytest

from anchorfold.databases.qdrant_engine import close_local
from anchorfold.databases.qdrant_store import QdrantStore
from anchorfold.testing.store_contract import STORE_SETTINGS, StoreContract
from tests.databases.qdrant_server import running


class TestLocalMode(StoreContract):
    many_writers = True

    @pytest.fixture
    def open_store(self, tmp_path):
        url = f"qdrant://{tmp_path}/pages"
        QdrantStore.create(url, STORE_SETTINGS)
        yield lambda: QdrantStore.open(url)
        close_local(str(tmp_path))


class TestEngineOverHttp(StoreContract):
    many_writers = True

    @pytest.fixture
    def open_store(self):
        with running() as (server, url):
            QdrantStore.create(url, STORE_SETTINGS)
            yield lambda: QdrantStore.open(url)
        assert server.problems == []
