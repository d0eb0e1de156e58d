"""An index in Qdrant: addresses, limits, writers that are killed, and what the engine computes."""

import os
import random
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from anchorfold.databases import qdrant_head, qdrant_layout
from anchorfold.databases.qdrant_engine import QdrantAddress, all_of, close_local, matches
from anchorfold.databases.qdrant_store import QdrantStore
from anchorfold.databases.qdrant_text import query_numbers, term_weights
from anchorfold.errors import (
    AnchorFoldError,
    FilterError,
    InvalidArgumentError,
    LockedError,
    NotAnIndexError,
    StoreError,
)
from anchorfold.page import EncodedPage
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.lock import writer_lock
from anchorfold.testing.store_contract import (
    DIM,
    MODIFIED,
    QUERY,
    STORE_SETTINGS,
    A,
    B,
    C,
    page_keys,
    store_row,
    text_search,
    visual_search,
)
from tests import forked
from tests.databases.qdrant_server import running


@pytest.fixture
def served():
    with running() as (server, url):
        yield server, url
    assert server.problems == []


@pytest.mark.parametrize(
    ("url", "server", "folder", "key"),
    [
        ("qdrant://host:6333/reports", "http://host:6333", "", None),
        ("qdrant://host/reports", "http://host:6333", "", None),
        ("qdrant+https://:k%40y@host/reports", "https://host:443", "", "k@y"),
        ("qdrant+https://host/proxy/reports?api_key=secret", "https://host:443/proxy", "", "secret"),
        ("qdrant:///data/indexes/reports", None, "/data/indexes", None),
    ],
)
def test_addresses(url, server, folder, key, monkeypatch):
    monkeypatch.delenv("QDRANT_API_KEY", raising=False)
    address = QdrantAddress.parse(url)
    assert (address.server, address.folder, address.api_key, address.collection) == (server, folder, key, "reports")
    assert key is None or (key not in repr(address) and key not in address.location)


@pytest.mark.parametrize("url", ["qdrant://host", "qdrant:///reports", "qdrant://key@host/x", "qdrant://host:x/y"])
def test_addresses_that_are_wrong(url):
    with pytest.raises(InvalidArgumentError):
        QdrantAddress.parse(url)


def test_the_key_comes_from_the_environment_and_is_never_stored_or_printed(monkeypatch):
    with running(key="s3cret") as (server, url):
        with pytest.raises(StoreError, match="QDRANT_API_KEY") as error:
            QdrantStore.create(url, STORE_SETTINGS)
        monkeypatch.setenv("QDRANT_API_KEY", "s3cret")
        store = QdrantStore.create(url, STORE_SETTINGS)
        points = list(store.engine.scroll(all_of()))
        assert "s3cret" not in f"{error.value}{store.location}{points}{vars(store)}"
        assert server.problems == []


def test_a_server_that_is_too_old_or_away_is_one_error():
    with running(version="1.15.4") as (_, url), pytest.raises(StoreError, match=r"1\.15\.4.*1\.16"):
        QdrantStore.create(url, STORE_SETTINGS)
    with pytest.raises(StoreError, match="failed"):
        QdrantStore.open("qdrant://127.0.0.1:9/pages")


def test_what_is_not_an_index(served, tmp_path):
    server, url = served
    with pytest.raises(NotAnIndexError):
        QdrantStore.open(url)
    with pytest.raises(NotAnIndexError):
        QdrantStore.open(f"qdrant://{tmp_path}/none/pages")
    assert not (tmp_path / "none").exists()
    body = {"vectors": {"v": {"size": 2, "distance": "Dot"}}}
    server.handle("PUT", "/collections/pages", body)  # of another application
    with pytest.raises(NotAnIndexError, match="without an AnchorFold index"):
        QdrantStore.create(url, STORE_SETTINGS)
    assert list(server.shards) == ["pages"]


def test_an_alias_of_a_re_created_index(served):
    server, url = served
    store = QdrantStore.create(url, STORE_SETTINGS)
    other = QdrantStore.create(f"{url}_new", replace(STORE_SETTINGS, method="ward"))
    with other.writing():
        other.append([store_row(A, 1, 1)])
    before = store.version
    server.aliases["pages"] = other.engine.real_name()
    assert store.refresh() != before
    assert store.settings.method == "ward"
    assert page_keys(visual_search(store)) == [(A, 1)]


def test_the_layout_that_applications_query(served):
    server, url = served
    store = QdrantStore.create(url, STORE_SETTINGS)
    with store.writing():
        store.set_metadata({}, {"year": "integer"})
        store.append([store_row(A, 1, 1, "net revenue", thumbnail=b"image")])
        store.set_metadata({A: {"year": 2024}}, {"year": "integer"})
        store.append([store_row(A, 1, 1, "new", "v2", live=False)])
    live = all_of(matches("type", "page"), matches("live", True))
    (point,) = store.engine.scroll(live, vectors=True)
    expected = {"document": "a.pdf", "page": 1, "pages": 1, "text": "net revenue", "kind": "pdf", "source": A,
                "metadata": {"year": 2024},
                "modified": "2024-03-18", "thumbnail": "data:image/jpeg;base64,aW1hZ2U="}  # fmt: skip
    assert expected.items() <= point.payload.items()
    assert point.vector.keys() == {"pages", "pooled", "text"}
    np.testing.assert_allclose(np.mean(point.vector["pages"], 0), point.vector["pooled"], atol=1e-6)
    created = next(path for method, path in server.requests if method == "PUT")
    assert created.startswith("/collections/pages-")


def test_a_page_that_qdrant_cannot_store_is_one_error_before_anything_is_written(served):
    _, url = served
    store = QdrantStore.create(url, replace(STORE_SETTINGS, dim=3072))
    large = lambda m: EncodedPage(  # noqa: E731
        torch.ones(m, 3072) / 3072**0.5, torch.arange(m), torch.arange(m), torch.ones(m), None
    )
    with store.writing():
        with pytest.raises(AnchorFoldError, match=r"2,304 vectors of dimension 3,072.*--cap 341"):
            store.append([store_row(B, 1, 1), replace(store_row(A, 1, 1), encoded=large(2304))])
        assert store.documents() == {}
        store.append([replace(store_row(A, page, 3), encoded=large(231)) for page in (1, 2, 3)])  # a 10x fold
    assert store.info().pages == 3


def test_requests_stay_below_the_limit_of_a_server(served, monkeypatch):
    server, url = served
    monkeypatch.setattr(qdrant_layout, "REQUEST_VALUES", 300)
    store = QdrantStore.create(url, STORE_SETTINGS)
    with store.writing():
        store.append([store_row(A, page, 40, "x" * 100) for page in range(1, 41)])
    assert store.documents()[A].stored == 40
    assert server.largest < 40_000


def replace_document(url: str) -> None:
    """Replace a document and remove another one, continuing where another process was killed."""
    store = QdrantStore.open(url)
    with store.writing():
        stored = store.stored_pages([A]).get(A, {}).get("v2", set())
        for page in (1, 2, 3):
            if page not in stored:
                store.append([store_row(A, page, 3, "budget", "v2", live=False)])
        store.promote(A, "v2", 100, MODIFIED)
        store.remove([B])


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_whole_documents_and_is_resumed(served):
    server, url = served
    rng = random.Random(33)
    whole = [{(A, 1), (A, 2)}, {(A, 1), (A, 2), (A, 3)}]
    for number in range(10):
        server.aliases.clear()
        store = QdrantStore.create(url, STORE_SETTINGS)
        with store.writing():
            store.append([store_row(A, 1, 2, "revenue"), store_row(A, 2, 2, "revenue"), store_row(B, 1, 1, "revenue")])
        process, left = forked.start(replace_document, url), [rng.randrange(5, 60)]

        def kill(method: str, path: str, process=process, left=left) -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(process.pid, signal.SIGKILL)

        server.before = kill
        process.join(60)
        server.before = lambda method, path: None
        pages = set(page_keys(visual_search(store)))
        assert {key for key in pages if key[0] == A} in whole, number
        words = {hit.source for hit in text_search(store, "revenue")}, {h.source for h in text_search(store, "budget")}
        assert (A in words[0]) != (A in words[1])
        replace_document(url)
        assert set(page_keys(visual_search(store))) == whole[1]
        assert store.documents().keys() == {A}
        assert store.engine.count(all_of(matches("type", "page"))) == 3
        assert store.check() == []
        store.delete()


def test_two_writers_of_different_documents(served):
    _, url = served
    QdrantStore.create(url, STORE_SETTINGS)
    problems = []

    def write(source: str) -> None:
        try:
            store = QdrantStore.open(url)
            for number in range(1, 6):
                with store.writing(sources=[source]):
                    store.append(
                        [store_row(source, page, 2, "text", f"v{number}", live=number == 1) for page in (1, 2)]
                    )
                    if number > 1:
                        store.promote(source, f"v{number}", 100, MODIFIED)
                    store.set_metadata({source: {source[-5]: number}}, {source[-5]: "integer"})
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(source,)) for source in (A, B, C)]
    for thread in threads:
        thread.start()
    reader = QdrantStore.open(url)
    while any(thread.is_alive() for thread in threads):
        for source, pages in _by_source(visual_search(reader)).items():
            # The first version is appended page by page within one request.
            assert pages in ([1, 2], [2, 1]), source
    assert problems == []
    assert {s: state.digest for s, state in reader.documents().items()} == dict.fromkeys((A, B, C), "v5")
    assert {"a", "b", "c"} <= reader.columns().keys()
    assert reader.check() == []


def _by_source(hits):
    found: dict[str, list[int]] = {}
    for hit in hits:
        found.setdefault(hit.source, []).append(hit.page)
    return found


def test_a_lease_is_taken_over_when_it_expires_or_its_process_ended(served, monkeypatch):
    _, url = served
    store, other = QdrantStore.create(url, STORE_SETTINGS), QdrantStore.open(url)
    with store.writing():
        with pytest.raises(LockedError), other.writing(wait=0):
            pass
        monkeypatch.setattr(qdrant_head, "LEASE_SECONDS", -1.0)
        with other.writing(wait=0):
            monkeypatch.setattr(qdrant_head, "LEASE_SECONDS", 60.0)
            other.append([store_row(A, 1, 1)])
        monkeypatch.setattr(qdrant_head, "LEASE_SECONDS", -1.0)
        with pytest.raises(StoreError, match="lease"):
            store.append([store_row(B, 1, 1)])
    process = forked.start(hold, url)
    process.join(60)
    monkeypatch.setattr(qdrant_head, "LEASE_SECONDS", 60.0)
    with store.writing(wait=0):
        assert store.documents().keys() == {A}


def hold(url: str) -> None:
    """Be killed while holding a lease."""
    QdrantStore.open(url).writing().__enter__()
    os.kill(os.getpid(), signal.SIGKILL)


def test_check_finds_and_repairs_what_differs(served):
    _, url = served
    store = QdrantStore.create(url, STORE_SETTINGS)
    with store.writing():
        store.append([store_row(A, 1, 1), store_row(B, 1, 1)])
    store.engine.set_payload({"source": "/wrong.pdf"}, all_of(matches("document", "a.pdf"), matches("type", "page")))
    store.engine.delete(all_of(matches("document", "b.pdf"), matches("type", "document")))
    assert {damage.problem for damage in store.check()} == {
        "1 pages belong to no document", "pages differ from the entry of their document",
    }  # fmt: skip
    assert len(store.check(fix=True)) == 2
    assert store.check() == []
    assert page_keys(visual_search(store)) == [(A, 1)]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("signed", {A}),
        ("not signed", {B}),
        ("signed is false or signed is null", {B, C}),
        ("not (signed = true and year > 2020)", {B}),
        ("due < '2024-06-01'", {A}),
        ("due between '2024-05-01' and '2024-07-01'", {A, B}),
        ("share = 0.5 or share > 0.7", {A, B}),
        ("team > 'board'", {A}),
        ("team ilike 'SA_es'", {A}),
        ("team not like '%a%'", set()),
        ("year = 9007199254740993", {C}),
        ("year != 9007199254740993", {A, B}),
        ("year in (2024.0, 7)", {A}),
        ("folder = 'other'", {C}),
    ],
)
def test_filters_in_the_engine(filtered, where, expected):
    assert {hit.source for hit in visual_search(filtered, where=where)} == expected


@pytest.fixture(scope="module")
def filtered():
    with running(indexes=True) as (server, url):
        store = QdrantStore.create(url, STORE_SETTINGS)
        types = {"signed": "boolean", "due": "date", "share": "float", "team": "text", "year": "integer"}
        with store.writing():
            store.append([store_row(A, 1, 1), store_row(B, 1, 1), store_row(C, 1, 1)])
            store.set_metadata(
                {
                    A: {"signed": True, "due": "2024-05-01", "share": 0.5, "team": "sales", "year": 2024},
                    B: {"signed": False, "due": "2024-07-01", "share": 0.75, "year": 2023},
                    C: {"team": "board", "year": 9007199254740993},
                },
                types,
            )
        yield store
        assert server.problems == []


def test_filters_that_the_engine_cannot_express(filtered):
    for where in ("year = pages", "year > 9007199254740993"):
        with pytest.raises(FilterError, match="Qdrant cannot compare"):
            visual_search(filtered, where=where)


def random_pages(count: int, dim: int, seed: int = 0) -> list[np.ndarray]:
    """Unit vectors of pages, each around topics of its own."""
    rng = np.random.default_rng(seed)
    pages = []
    for _ in range(count):
        topics = rng.standard_normal((3, dim))
        vectors = topics[rng.integers(3, size=12)] + 0.7 * rng.standard_normal((12, dim))
        pages.append((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32))
    return pages


@pytest.mark.parametrize("bits", [32, 16, 8, 4, 2, 1])
def test_scores_and_quantization_in_the_engine(served, bits):
    server, url = served
    dim, count = 64, 120
    pages = random_pages(count, dim)
    store = QdrantStore.create(url, replace(STORE_SETTINGS, dim=dim, bits=bits, text=False))
    rows = [
        replace(store_row(A, number + 1, count), encoded=EncodedPage(
            torch.from_numpy(vectors), torch.arange(12), torch.arange(12), torch.ones(12), None))
        for number, vectors in enumerate(pages)
    ]  # fmt: skip
    with store.writing():
        store.append(rows)
    for shard in server.shards.values():
        shard.optimize()
    rng = np.random.default_rng(1)
    agreement = []
    for number in range(10):
        query = pages[number * 7][:6] + 0.1 * rng.standard_normal((6, dim)).astype(np.float32)
        expected = np.array([(query @ page.T).max(1).sum() for page in pages])
        exact = store.search_visual(SearchRequest(vectors=[query], top_k=10, exact=True))[0]
        assert [hit.score for hit in exact] == pytest.approx(sorted(expected, reverse=True)[:10], abs=0.02)
        found = store.search_visual(SearchRequest(vectors=[query], top_k=10))[0]
        agreement.append(len(set(page_keys(exact)) & set(page_keys(found))) / 10)
        (few,) = store.search_visual(SearchRequest(vectors=[query], top_k=30, candidates=30))
        assert len(few) == 30
        assert few[0].page == exact[0].page
        assert [h.score for h in found] == pytest.approx([expected[h.page - 1] for h in found], abs=0.02)
    assert np.mean(agreement) > 0.95
    assert store.info().settings["quantization"] == {8: "scalar", 4: "turbo4", 2: "turbo2", 1: "turbo1"}.get(
        bits, "none"
    )


WORDS = "net revenue staff costs board minutes wi-fi 1,775 naïve 売上高 audit budget region quarter".split()  # noqa: SIM905


def test_text_scores_agree_with_sqlite(served, tmp_path):
    """The same matches, and nearly the same order: weights are stored with a constant average length."""
    _, url = served
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randrange(20, 300))) for _ in range(60)]
    rows = [store_row(A, number + 1, 60, text) for number, text in enumerate(texts)]
    store = QdrantStore.create(url, STORE_SETTINGS)
    with writer_lock(tmp_path, 0):
        embedded = EmbeddedStore.create(tmp_path, STORE_SETTINGS)
    for target in (store, embedded):
        with target.writing():
            target.append(rows)
    for query in ("revenue", "wi-fi", "1,775", "naive", "売上", '"staff costs" audit', '"board minutes"', "absent"):
        found, expected = text_search(store, query, top_k=60), text_search(embedded, query, top_k=60)
        assert set(page_keys(found)) == set(page_keys(expected)), query
        by_page = {(h.source, h.page): h for h in expected}
        assert all(
            (h.snippet, h.matches) == (by_page[h.source, h.page].snippet, by_page[h.source, h.page].matches)
            for h in found
        )
        scores = store.text_scores(query, [(A, 1), (A, 2)])
        assert all((score == 0) == ((A, page) not in by_page) for (_, page), score in scores.items())


def test_terms_of_texts_and_queries():
    text = term_weights("Net Revénue of wi-fi: 1,775 and 売上高")
    for query in ("revenue", "REVÉNUE", "wi-fi", "1,775", "売上"):
        assert set(query_numbers(query)) <= text.keys(), query
    assert not set(query_numbers("2,775")) & text.keys()
    assert query_numbers("?!") == []


def test_the_client_of_a_folder_serves_one_process(tmp_path):
    url = f"qdrant://{tmp_path}/pages"
    QdrantStore.create(url, STORE_SETTINGS)
    receiver, sender = forked.Pipe()
    process = forked.start(report_opening, url, sender)
    assert "is open in another process" in receiver.recv()
    process.join(60)
    close_local(str(tmp_path))
    assert QdrantStore.open(url).settings == STORE_SETTINGS
    close_local(str(tmp_path))


def report_opening(url, sender) -> None:
    """Send the error of opening an index."""
    try:
        QdrantStore.open(url)
    except StoreError as error:
        sender.send(str(error))


def test_query_without_tokens(served):
    _, url = served
    store = QdrantStore.create(url, STORE_SETTINGS)
    assert store.search_visual(SearchRequest(vectors=[np.zeros((0, DIM)), QUERY])) == [[], []]
    assert store.page_scores(np.zeros((0, DIM)), [(A, 1)]) == {}
