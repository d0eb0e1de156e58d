import threading

import numpy as np
import pytest
import torch

from anchorfold import maxsim
from anchorfold.page import EncodedPage
from anchorfold.quantization.codec import BITS
from anchorfold.retrieval import scan
from anchorfold.retrieval.kernels import Tokens
from anchorfold.retrieval.live_pages import LivePages
from anchorfold.retrieval.scan import RESCORED, Scanner, best_positions, rank
from anchorfold.storage.records import PageRow
from tests.retrieval.kernels import each_kernel
from tests.storage.page_rows import make_store


def page_row(number, dim, rng, source="/a.pdf", length=None):
    length = length or int(rng.integers(1, 12))
    vectors = torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(length, dim)).astype(np.float32)), dim=1)
    every = torch.arange(length)
    encoded = EncodedPage(vectors, every, every, torch.ones(length))
    return PageRow(source, source[1:], number, 10**6, source, 1, 1, True, encoded)


def scan_store(folder, pages=200, dim=32, bits=16, commits=3):
    """Pages of ten documents in some commits."""
    rng = np.random.default_rng(0)
    rows = [page_row(number, dim, rng, f"/{number % 10}.pdf") for number in range(1, pages + 1)]
    parts = [[rows[i] for i in part] for part in np.array_split(np.arange(pages), commits)]
    return make_store(folder, *parts, dim=dim, bits=bits)


def live_pages(store):
    return store.read(LivePages.of)


def of_documents(store, live, *sources):
    """`(rows,)` true for pages of some documents."""
    versions = store.read(lambda snapshot: [v.id for v in snapshot.versions() if v.source in sources])
    return live.of_versions(np.array(versions, np.int64))


def sources_of(store, live, ranking):
    """The documents of ranked pages."""
    versions = [int(segment.version[row]) for segment, row in (live.locate(number) for number, _ in ranking)]
    known = store.read(lambda snapshot: snapshot.versions_by_id(versions))
    return {known[version].source for version in versions}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scan")
    return {bits: scan_store(folder / str(bits), bits=bits) for bits in BITS}


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return scan_store(tmp_path_factory.mktemp("many") / "8", 2000, bits=8)


def queries_of(count, dim=32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.nn.functional.normalize(torch.randn(3 + i % 5, dim, generator=generator), dim=1) for i in range(count)
    ]


def stored_vectors(live):
    return [torch.from_numpy(s.vectors(row, live.coding)) for s in live.segments for row in range(len(s))]


def scores_of(live, queries):
    return Scanner(live).scores(Tokens.of(queries, live.coding), np.arange(len(live)))[0]


@pytest.mark.parametrize("bits", BITS)
def test_scores_are_maxsim_of_the_stored_vectors(stores, bits):
    live, queries = live_pages(stores[bits]), queries_of(4)
    expected = maxsim(queries, stored_vectors(live)).numpy()
    for _ in each_kernel():
        assert np.allclose(scores_of(live, queries), expected, atol=5e-3 if bits <= 4 else 2e-4)


@pytest.mark.parametrize("dim", [8, 24, 100, 200])
def test_any_dimension(tmp_path, dim):
    for bits in (16, 4, 1):
        live = live_pages(scan_store(tmp_path / str(bits), 40, dim, bits))
        queries = queries_of(2, dim)
        expected = maxsim(queries, stored_vectors(live)).numpy()
        assert np.allclose(scores_of(live, queries), expected, atol=5e-3 if bits <= 4 else 2e-4)


@pytest.mark.parametrize("bits", [16, 8, 1])
def test_all_kernels_return_identical_rankings_and_scores(stores, many, bits):
    live, queries = live_pages(many if bits == 8 else stores[bits]), queries_of(20)
    allowed = np.arange(len(live)) % 3 == 0
    for mask in (None, allowed):
        rankings = [Scanner(live).top_k(queries, 10, mask) for _ in each_kernel()]
        assert all(ranking == rankings[0] for ranking in rankings)


def test_a_batch_returns_the_scores_of_single_queries(many):
    live, queries = live_pages(many), queries_of(20)
    assert Scanner(live).top_k(queries, 10) == [Scanner(live).top_k([query], 10)[0] for query in queries]


def test_filters_and_counts(stores):
    live = live_pages(stores[16])
    allowed = np.zeros(len(live), bool)
    allowed[[3, 30]] = True
    (ranking,) = Scanner(live).top_k(queries_of(1), 10, allowed)
    assert {number for number, _ in ranking} == {3, 30}
    assert len(Scanner(live).top_k(queries_of(1), 700)[0]) == 200
    chosen = of_documents(stores[16], live, "/3.pdf")
    assert sources_of(stores[16], live, Scanner(live).top_k(queries_of(1), 9, chosen)[0]) == {"/3.pdf"}


def test_pages_of_removed_and_staged_documents_are_not_returned(tmp_path):
    store = scan_store(tmp_path / "t", 50)
    rng = np.random.default_rng(5)
    with store.writing():
        store.append([PageRow("/s.pdf", "s.pdf", 1, 1, "s", 1, 1, False, page_row(1, 32, rng).encoded)])
        store.remove(["/3.pdf"])
    live = live_pages(store)
    (ranking,) = Scanner(live).top_k(queries_of(1), 100)
    assert len(ranking) == 45
    assert sources_of(store, live, ranking) == {f"/{i}.pdf" for i in range(10) if i != 3}


def test_rows_of_pages_by_their_ids(tmp_path):
    store = scan_store(tmp_path / "t", 50)
    with store.writing():
        store.remove(["/3.pdf"])
    live = live_pages(store)
    rows = np.flatnonzero(live.allowed)
    assert np.array_equal(live.rows_of(live.identities(rows)), rows)
    assert live.rows_of(live.identities(np.flatnonzero(~live.allowed))).tolist() == [-1] * 5
    assert live.rows_of(np.array([7, 2**40])).tolist() == [-1, -1]
    assert np.array_equal(np.flatnonzero(live.of_pages(live.identities(rows[3:5]))), rows[3:5])
    empty = live_pages(make_store(tmp_path / "e"))
    assert empty.rows_of(np.array([7])).tolist() == [-1]


def test_queries_without_vectors_and_indexes_without_pages(stores, tmp_path):
    assert Scanner(live_pages(stores[16])).top_k([torch.zeros(0, 32), *queries_of(1)], 3)[0] == []
    empty = live_pages(make_store(tmp_path / "e", dim=32))
    assert scores_of(empty, queries_of(2)).shape == (2, 0)
    assert Scanner(empty).top_k(queries_of(2), 3) == [[], []]


def test_many_queries_are_scored_in_parts(stores, monkeypatch):
    live, queries = live_pages(stores[16]), queries_of(30)
    whole = Scanner(live).top_k(queries, 5)
    monkeypatch.setattr(scan, "SCORES", 1000)
    assert Scanner(live).top_k(queries, 5) == whole


def test_equal_scores_keep_page_order():
    assert rank(np.array([1.0, 2.0, 1.0, 2.0]), np.array([4, 5, 6, 7]), 3) == [(5, 2.0), (7, 2.0), (4, 1.0)]


def test_pages_within_the_error_bound_are_rescored():
    scores = np.arange(100, dtype=np.float32)[::-1].copy()
    assert best_positions(scores, 3, 0).tolist() == [0, 1, 2]
    assert best_positions(scores, 3, 10).tolist() == list(range(23))  # those from 97 - 2 * 10 on
    assert best_positions(scores[:3], 3, 0).tolist() == [0, 1, 2]


def test_of_many_pages_with_equal_scores_the_first_are_rescored():
    scores = np.ones(10_000, np.float32)
    scores[-1] = 2
    assert best_positions(scores, 10, 0).tolist() == [*range(10 + RESCORED - 1), 9_999]


def test_concurrent_searches_return_the_same_results(many):
    live, queries = live_pages(many), queries_of(5)
    expected, results = Scanner(live).top_k(queries, 10), []
    workers = [threading.Thread(target=lambda: results.append(Scanner(live).top_k(queries, 10))) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == [expected] * 8


@pytest.mark.parametrize("bits", BITS)
def test_queries_that_are_scored_together_have_the_results_of_single_ones(stores, bits):
    scanner, queries = Scanner(live_pages(stores[bits])), queries_of(24)
    expected, results = [scanner.top_k([query], 10)[0] for query in queries], {}

    def search(i):
        results[i] = [scanner.top_k([queries[i]], 10)[0] for _ in range(5)]

    workers = [threading.Thread(target=search, args=(i,)) for i in range(len(queries))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert results == {i: [ranking] * 5 for i, ranking in enumerate(expected)}
