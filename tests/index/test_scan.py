import os
import threading

import numpy as np
import pytest
import torch

from anchorfold import maxsim
from anchorfold.index import products, scan
from anchorfold.index.coding import BITS, Coding
from anchorfold.index.live import LivePages, equal_blocks
from anchorfold.index.products import integer_maxima, integers_are_quick, numpy_maxima, torch_maxima
from anchorfold.index.scan import Scanner, best_of, first_best
from anchorfold.index.store.records import PageRow
from anchorfold.page import EncodedPage
from tests.index.store.page_rows import make_store

WAYS: tuple[scan.Way, ...] = ("numpy", "floats", "integers")


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


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("way", WAYS)
def test_every_kernel_computes_maxsim_of_the_stored_vectors(stores, bits, way):
    if way == "integers" and bits > 8:
        return
    live = live_pages(stores[bits])
    queries = queries_of(4)
    expected = maxsim(queries, stored_vectors(live)).numpy()
    tolerance = 0.06 * max(1.0, float(np.abs(expected).max()) / 3) if way == "integers" else 1e-4
    assert np.allclose(Scanner(live).scores(queries, way), expected, atol=tolerance)


@pytest.mark.parametrize("dim", [8, 24, 100, 200])
def test_any_dimension(tmp_path, dim):
    for bits in (16, 4, 1):
        live = live_pages(scan_store(tmp_path / str(bits), 40, dim, bits))
        queries = queries_of(2, dim)
        expected = maxsim(queries, stored_vectors(live)).numpy()
        for way in WAYS[:2]:
            assert np.allclose(Scanner(live).scores(queries, way), expected, atol=1e-4)


def test_all_kernels_return_identical_rankings(many, monkeypatch):
    live, queries = live_pages(many), queries_of(20)
    allowed = np.arange(len(live)) % 3 == 0
    for mask in (None, allowed):
        answers = []
        for way in WAYS:
            monkeypatch.setattr(Scanner, "way", lambda *_, way=way: way)
            answers.append(Scanner(live).top(queries, 10, mask))
        assert answers[0] == answers[1] == answers[2]


def test_filters_and_counts(stores):
    live = live_pages(stores[16])
    allowed = np.zeros(len(live), bool)
    allowed[[3, 30]] = True
    (ranking,) = Scanner(live).top(queries_of(1), 10, allowed)
    assert {number for number, _ in ranking} == {3, 30}
    assert len(Scanner(live).top(queries_of(1), 700)[0]) == 200
    chosen = of_documents(stores[16], live, "/3.pdf")
    assert sources_of(stores[16], live, Scanner(live).top(queries_of(1), 9, chosen)[0]) == {"/3.pdf"}


def test_pages_of_removed_and_staged_documents_are_not_returned(tmp_path):
    store = scan_store(tmp_path / "t", 50)
    rng = np.random.default_rng(5)
    with store.writing():
        store.append([PageRow("/s.pdf", "s.pdf", 1, 1, "s", 1, 1, False, page_row(1, 32, rng).encoded)])
        store.remove(["/3.pdf"])
    live = live_pages(store)
    (ranking,) = Scanner(live).top(queries_of(1), 100)
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
    assert Scanner(live_pages(stores[16])).top([torch.zeros(0, 32), *queries_of(1)], 3)[0] == []
    empty = live_pages(make_store(tmp_path / "e", dim=32))
    for way in WAYS:
        assert Scanner(empty).scores(queries_of(2), way).shape == (2, 0)
    assert Scanner(empty).top(queries_of(2), 3) == [[], []]


def test_many_queries_are_scored_in_parts(stores, monkeypatch):
    live, queries = live_pages(stores[16]), queries_of(30)
    whole = Scanner(live).top(queries, 5)
    monkeypatch.setattr(scan, "SCORES", 1000)
    assert Scanner(live).top(queries, 5) == whole


def test_equal_scores_keep_page_order():
    assert best_of(np.array([1.0, 2.0, 1.0, 2.0]), np.array([4, 5, 6, 7]), 3) == [(5, 2.0), (7, 2.0), (4, 1.0)]


def test_of_pages_with_equal_scores_the_first_are_chosen():
    assert first_best(np.array([2.0, 1.0, 2.0, 3.0, 2.0, 0.0]), 3).tolist() == [0, 2, 3]
    assert first_best(np.array([1.0, 2.0]), 2).tolist() == [0, 1]


def test_blocks_cover_all_pages_once():
    lengths = np.array([0, 1, 1, 1, 5, 5, 9, 9, 9, 9])
    blocks = list(equal_blocks(lengths, 20))
    assert [p for first, last, _ in blocks for p in range(first, last)] == list(range(10))
    assert all(set(lengths[first:last]) == {length} and (last - first) * length <= 20 for first, last, length in blocks)


def test_the_number_of_threads_is_restored(many):
    before = torch.get_num_threads()
    scanner = Scanner(live_pages(many))
    workers = [threading.Thread(target=scanner.scores, args=(queries_of(2), "floats")) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert torch.get_num_threads() == before


def test_systems_without_sched_getaffinity(many, monkeypatch):
    live = live_pages(many)
    expected = Scanner(live).scores(queries_of(2), "floats")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert np.array_equal(Scanner(live).scores(queries_of(2), "floats"), expected)


class TestWays:
    @pytest.fixture(autouse=True)
    def fresh(self):
        integers_are_quick.cache_clear()
        yield
        integers_are_quick.cache_clear()

    @pytest.mark.parametrize(("quick", "default"), [(True, "integers"), (False, "floats")])
    def test_the_fastest_kernel_is_chosen(self, many, monkeypatch, quick, default):
        monkeypatch.setattr(scan, "SMALL", 0)
        monkeypatch.setattr(scan, "integers_are_quick", lambda _: quick)
        scanner = Scanner(live_pages(many))
        assert (scanner.way(), scanner.way(exact=True)) == (default, "floats")

    def test_small_indexes_are_scanned_without_torch(self, stores, monkeypatch):
        monkeypatch.setattr(scan, "integers_are_quick", lambda _: pytest.fail("tried"))
        assert Scanner(live_pages(stores[8])).way() == "numpy"

    def test_integer_kernels_that_overflow_are_not_used(self, monkeypatch):
        # Without VNNI, one side is made unsigned, and pairs of products are added in 16 bits.
        def saturating(a, b):
            pairs = (a.int()[:, :, None] * (b.int() + 128)).unflatten(1, (-1, 2)).sum(2)
            return pairs.clamp(-(2**15), 2**15 - 1).sum(1) - 128 * a.int().sum(1, keepdim=True)

        monkeypatch.setattr(torch, "_int_mm", saturating)
        monkeypatch.setattr(products, "WORTHWHILE", 1e9)
        assert not integers_are_quick(Coding(32, 8))

    def test_missing_integer_kernels_are_not_used(self, monkeypatch):
        def missing(*_):
            raise NotImplementedError("no such kernel")

        monkeypatch.setattr(torch, "_int_mm", missing)
        assert not integers_are_quick(Coding(32, 8))

    @pytest.mark.parametrize("bits", [8, 4, 2, 1])
    def test_correct_and_fast_integer_kernels_are_used(self, monkeypatch, bits):
        monkeypatch.setattr(torch, "_int_mm", lambda a, b: (a.float() @ b.float()).int())
        monkeypatch.setattr(products, "WORTHWHILE", 1e9)
        assert integers_are_quick(Coding(100, bits))
        assert not integers_are_quick(Coding(100, 16))

    def test_kernels_agree(self):
        coding = Coding(100, 2)
        rng = np.random.default_rng(1)
        vectors = rng.normal(size=(60, 100)).astype(np.float32)
        codes, scales = coding.encode(vectors)
        tokens = coding.turn(rng.normal(size=(7, 100)).astype(np.float32))
        first, *others = (kernel(coding, tokens)(codes, scales, 6) for kernel in (numpy_maxima, torch_maxima, integer_maxima))  # fmt: skip  # noqa: E501
        assert first.shape == (7, 10)
        assert np.allclose(first, others[0], atol=1e-3)
        assert np.allclose(first, others[1], atol=0.02 * np.abs(first).max())
