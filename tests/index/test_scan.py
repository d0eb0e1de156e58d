import os
import threading

import numpy as np
import pytest
import torch
from anchorfold.index.store.pages import PageRow
from anchorfold.index.store.table import PageTable

from anchorfold import maxsim
from anchorfold.index import products, scan
from anchorfold.index.coding import BITS, Coding
from anchorfold.index.live import LivePages, equal_blocks
from anchorfold.index.products import integer_maxima, integers_are_quick, numpy_maxima, torch_maxima
from anchorfold.index.scan import Scanner, best_of, first_best
from anchorfold.page import EncodedPage
from tests.number_reader import index_settings

WAYS: tuple[scan.Way, ...] = ("numpy", "floats", "integers")


def page_row(number, dim, rng, source="/a.pdf", length=None):
    length = length or int(rng.integers(1, 12))
    vectors = torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(length, dim)).astype(np.float32)), dim=1)
    every = torch.arange(length)
    encoded = EncodedPage(vectors, every, every, torch.ones(length))
    return PageRow(source, source[1:], number, 10**6, source, 1, 1, True, encoded)


def make_table(folder, pages=200, dim=32, bits=16, commits=3):
    table = PageTable.create(folder, index_settings(dim=dim, bits=bits))
    rng = np.random.default_rng(0)
    rows = [page_row(number, dim, rng, f"/{number % 10}.pdf") for number in range(1, pages + 1)]
    for some in np.array_split(np.arange(pages), commits):
        table.append([rows[i] for i in some])
    return table


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scan")
    return {bits: make_table(folder / str(bits), bits=bits) for bits in BITS}


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return make_table(tmp_path_factory.mktemp("many") / "8", 2000, bits=8)


def queries_of(count, dim=32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.nn.functional.normalize(torch.randn(3 + i % 5, dim, generator=generator), dim=1) for i in range(count)
    ]


def stored_vectors(live):
    return [torch.from_numpy(s.vectors(row, live.coding)) for s in live.segments for row in range(len(s))]


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_maxsim_of_what_is_stored(tables, bits, way):
    if way == "integers" and bits > 8:
        return
    live = LivePages(tables[bits])
    queries = queries_of(4)
    expected = maxsim(queries, stored_vectors(live)).numpy()
    tolerance = 0.06 * max(1.0, float(np.abs(expected).max()) / 3) if way == "integers" else 1e-4
    assert np.allclose(Scanner(live).scores(queries, way), expected, atol=tolerance)


@pytest.mark.parametrize("dim", [8, 24, 100, 200])
def test_any_dimension(tmp_path, dim):
    for bits in (16, 4, 1):
        live = LivePages(make_table(tmp_path / str(bits), 40, dim, bits))
        queries = queries_of(2, dim)
        expected = maxsim(queries, stored_vectors(live)).numpy()
        for way in WAYS[:2]:
            assert np.allclose(Scanner(live).scores(queries, way), expected, atol=1e-4)


def test_all_ways_answer_alike_to_the_bit(many, monkeypatch):
    live, queries = LivePages(many), queries_of(20)
    allowed = np.arange(len(live)) % 3 == 0
    for mask in (None, allowed):
        answers = []
        for way in WAYS:
            monkeypatch.setattr(Scanner, "way", lambda *_, way=way: way)
            answers.append(Scanner(live).top(queries, 10, mask))
        assert answers[0] == answers[1] == answers[2]


def test_filters_and_counts(tables):
    live = LivePages(tables[16])
    allowed = np.zeros(len(live), bool)
    allowed[[3, 30]] = True
    (ranking,) = Scanner(live).top(queries_of(1), 10, allowed)
    assert {number for number, _ in ranking} == {3, 30}
    assert len(Scanner(live).top(queries_of(1), 700)[0]) == 200
    chosen = live.of_documents(lambda version: version.name == "3.pdf")
    assert {live.page(number)[0].name for number, _ in Scanner(live).top(queries_of(1), 9, chosen)[0]} == {"3.pdf"}


def test_pages_of_removed_and_staged_documents_are_not_answered(tmp_path):
    table = make_table(tmp_path / "t", 50)
    rng = np.random.default_rng(5)
    table.append([PageRow("/s.pdf", "s.pdf", 1, 1, "s", 1, 1, False, page_row(1, 32, rng).encoded)])
    table.remove(["/3.pdf"])
    live = LivePages(table)
    (ranking,) = Scanner(live).top(queries_of(1), 100)
    assert len(ranking) == 45
    assert {live.page(number)[0].name for number, _ in ranking} == {f"{i}.pdf" for i in range(10) if i != 3}


def test_queries_without_vectors_and_indexes_without_pages(tables, tmp_path):
    assert Scanner(LivePages(tables[16])).top([torch.zeros(0, 32), *queries_of(1)], 3)[0] == []
    empty = LivePages(PageTable.create(tmp_path / "e", index_settings(dim=32)))
    for way in WAYS:
        assert Scanner(empty).scores(queries_of(2), way).shape == (2, 0)
    assert Scanner(empty).top(queries_of(2), 3) == [[], []]


def test_many_queries_are_answered_in_parts(tables, monkeypatch):
    live, queries = LivePages(tables[16]), queries_of(30)
    whole = Scanner(live).top(queries, 5)
    monkeypatch.setattr(scan, "SCORES", 1000)
    assert Scanner(live).top(queries, 5) == whole


def test_equal_scores_keep_page_order():
    assert best_of(np.array([1.0, 2.0, 1.0, 2.0]), np.array([4, 5, 6, 7]), 3) == [(5, 2.0), (7, 2.0), (4, 1.0)]


def test_the_first_of_equal_pages_are_the_best():
    assert first_best(np.array([2.0, 1.0, 2.0, 3.0, 2.0, 0.0]), 3).tolist() == [0, 2, 3]
    assert first_best(np.array([1.0, 2.0]), 2).tolist() == [0, 1]


def test_blocks_cover_all_pages_once():
    lengths = np.array([0, 1, 1, 1, 5, 5, 9, 9, 9, 9])
    blocks = list(equal_blocks(lengths, 20))
    assert [p for first, last, _ in blocks for p in range(first, last)] == list(range(10))
    assert all(set(lengths[first:last]) == {length} and (last - first) * length <= 20 for first, last, length in blocks)


def test_threads_are_given_back(many):
    before = torch.get_num_threads()
    scanner = Scanner(LivePages(many))
    workers = [threading.Thread(target=scanner.scores, args=(queries_of(2), "floats")) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert torch.get_num_threads() == before


def test_systems_that_do_not_tell_the_processors_of_a_process(many, monkeypatch):
    live = LivePages(many)
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
    def test_the_quickest_is_taken(self, many, monkeypatch, quick, default):
        monkeypatch.setattr(scan, "SMALL", 0)
        monkeypatch.setattr(scan, "integers_are_quick", lambda _: quick)
        scanner = Scanner(LivePages(many))
        assert (scanner.way(), scanner.way(exact=True)) == (default, "floats")

    def test_small_indexes_do_without_torch(self, tables, monkeypatch):
        monkeypatch.setattr(scan, "integers_are_quick", lambda _: pytest.fail("tried"))
        assert Scanner(LivePages(tables[8])).way() == "numpy"

    def test_integers_that_overflow_do_not_count(self, monkeypatch):
        # Without VNNI, one side is made unsigned, and pairs of products are added in 16 bits.
        def saturating(a, b):
            pairs = (a.int()[:, :, None] * (b.int() + 128)).unflatten(1, (-1, 2)).sum(2)
            return pairs.clamp(-(2**15), 2**15 - 1).sum(1) - 128 * a.int().sum(1, keepdim=True)

        monkeypatch.setattr(torch, "_int_mm", saturating)
        monkeypatch.setattr(products, "WORTHWHILE", 1e9)
        assert not integers_are_quick(Coding(32, 8))

    def test_integers_that_are_not_there_do_not_count(self, monkeypatch):
        def missing(*_):
            raise NotImplementedError("no such kernel")

        monkeypatch.setattr(torch, "_int_mm", missing)
        assert not integers_are_quick(Coding(32, 8))

    @pytest.mark.parametrize("bits", [8, 4, 2, 1])
    def test_integers_that_are_right_and_quick_count(self, monkeypatch, bits):
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
