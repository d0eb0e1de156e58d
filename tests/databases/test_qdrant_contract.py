"""The store contract on the local mode of qdrant-client."""

import pytest

from anchorfold.databases.qdrant_engine import close_local
from anchorfold.databases.qdrant_store import QdrantStore
from anchorfold.testing.store_contract import STORE_SETTINGS, StoreContract


class TestQdrantStore(StoreContract):
    many_writers = True

    @pytest.fixture
    def open_store(self, tmp_path):
        url = f"qdrant://{tmp_path}/pages"
        QdrantStore.create(url, STORE_SETTINGS)
        yield lambda: QdrantStore.open(url)
        close_local(str(tmp_path))
