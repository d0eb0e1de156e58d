"""Compression of an existing Qdrant collection into an index in the same server."""

import json

import numpy as np
import pytest
from qdrant_client import models
from typer.testing import CliRunner

import anchorfold.cli.compress_command  # noqa: F401 - registers the command
from anchorfold.cli.app import app
from anchorfold.databases.qdrant_store import QdrantStore
from tests.databases.qdrant_server import full_collection, running
from tests.databases.test_qdrant_store import random_pages

PAGES, DIM = 60, 32


@pytest.fixture
def collection():
    with running() as (server, url):
        address = url.replace("qdrant://", "http://").removesuffix("/pages")
        client = full_collection(address, DIM)
        points = [
            models.PointStruct(
                id=number,
                vector={"colpali": vectors.tolist()},
                payload={"file": f"{number % 3}.pdf", "page": number // 3},
            )
            for number, vectors in enumerate(random_pages(PAGES, DIM))
        ]
        client.upsert("full", points)
        yield server, url, address
        assert (server.problems, server.failures) == ([], [])


def compress(address: str, url: str) -> dict:
    arguments = ["compress", address, "--collection", "full", "-o", url, "--ratio", "0.5", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def test_a_collection_is_compressed_into_the_same_server(collection):
    _, url, address = collection
    report = compress(address, url)
    assert (report["pages"], report["unchanged"]) == (PAGES, 0)
    assert 0.6 < report["same results"] <= 1
    store = QdrantStore.open(url)
    assert store.info().pages == PAGES
    assert store.names().keys()
    assert (report["vectors"], report["full_vectors"]) == (PAGES * 6, PAGES * 12)


def test_an_interrupted_compression_continues(collection):
    server, url, address = collection
    compress(address, url)
    store = QdrantStore.open(url)
    with store.writing():
        removed = sorted(store.names())[0]
        store.remove([removed])
    before = len(server.requests)
    assert compress(address, url)["unchanged"] == PAGES * 2 // 3
    assert store.info().pages == PAGES
    assert len(server.requests) > before
    assert np.isfinite(compress(address, url)["same results"])
