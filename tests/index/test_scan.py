import math
import os
import threading

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfold import maxsim
from anchorfold.index import scan
from anchorfold.index.scan import Scanner, Trial, best_of, equal_blocks, first_best
from anchorfold.index.store.flat import FlatIndex


def make_flat(pages=200, dim=32, seed=0, dtype=np.float16):
    rng = np.random.default_rng(seed)
    lengths = np.sort(rng.integers(1, 12, pages))
    vectors = rng.normal(size=(lengths.sum(), dim)).astype(np.float32)
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(dtype)
    scale = float(np.abs(vectors).max()) / 127
    codes = np.rint(vectors.astype(np.float32) / scale).astype(np.int8)
    names = pa.table({"page": pa.array(range(pages), pa.int32())})
    return FlatIndex(1, vectors, codes, lengths, scale, names)


def queries_of(count, dim=32, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.nn.functional.normalize(torch.randn(3 + i % 5, dim, generator=generator), dim=1) for i in range(count)
    ]


def split(flat):
    return [torch.from_numpy(v.astype(np.float32)) for v in np.split(flat.vectors, flat.lengths.cumsum()[:-1])]


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 60), st.sampled_from([8, 24, 128, 200]), st.integers(1, 4))
def test_exact_is_maxsim(pages, dim, count):
    flat = make_flat(pages, dim)
    queries = queries_of(count, dim)
    assert torch.allclose(Scanner(flat).exact(queries), maxsim(queries, split(flat)), atol=1e-4)


def test_approximate_is_close():
    flat = make_flat()
    queries = queries_of(6)
    assert torch.allclose(Scanner(flat).approximate(queries), maxsim(queries, split(flat)), atol=0.06)


def test_the_fast_path_ranks_as_the_exact_one():
    scanner = Scanner(make_flat(3000))
    queries = queries_of(100)
    fast, exact = scanner.top(queries, 10, exact=False), scanner.top(queries, 10, exact=True)
    assert [[p for p, _ in q] for q in fast] == [[p for p, _ in q] for q in exact]
    for a, b in zip(fast, exact, strict=True):
        assert [s for _, s in a] == pytest.approx([s for _, s in b], abs=1e-4)


@pytest.mark.parametrize("exact", [True, False])
def test_filters_and_counts(exact):
    flat = make_flat(50)
    scanner = Scanner(flat)
    allowed = torch.zeros(50, dtype=torch.bool)
    allowed[[3, 30]] = True
    (found,) = scanner.top(queries_of(1), 10, allowed, exact)
    assert {p for p, _ in found} == {3, 30}
    assert len(scanner.top(queries_of(1), 70, None, exact)[0]) == 50


def test_queries_without_vectors_and_indexes_without_pages():
    scanner = Scanner(make_flat(5))
    assert scanner.top([torch.zeros(0, 32), *queries_of(1)], 3)[0] == []
    empty = FlatIndex(
        1, np.zeros((0, 32), np.float16), np.zeros((0, 32), np.int8), np.zeros(0, np.int64), 1.0, pa.table({})
    )
    for exact in (True, False):
        assert Scanner(empty).top(queries_of(2), 3, None, exact) == [[], []]


def test_equal_scores_keep_page_order():
    assert best_of(torch.tensor([1.0, 2.0, 1.0, 2.0]), torch.tensor([4, 5, 6, 7]), 3) == [(5, 2.0), (7, 2.0), (4, 1.0)]


def test_blocks_cover_all_pages_once():
    lengths = np.array([1, 1, 1, 5, 5, 9, 9, 9, 9])
    blocks = list(equal_blocks(lengths, 20))
    assert [p for first, last, _ in blocks for p in range(first, last)] == list(range(9))
    assert all(set(lengths[first:last]) == {length} and (last - first) * length <= 20 for first, last, length in blocks)


def test_threads_are_given_back():
    before = torch.get_num_threads()
    scanner = Scanner(make_flat(500))
    workers = [threading.Thread(target=scanner.exact, args=(queries_of(2),)) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert torch.get_num_threads() == before


SLOW_INTEGERS = Trial(exact=1.0, integer=9.0, widened=0.95, page=0.0)
QUICK_INTEGERS = Trial(exact=1.0, integer=0.3, widened=0.95, page=0.0)
WRONG_INTEGERS = Trial(exact=1.0, integer=math.inf, widened=0.95, page=0.0)
SLOW_HALVES = Trial(exact=5.0, integer=9.0, widened=1.0, page=0.0)


class TestWays:
    @pytest.fixture
    def machine(self, monkeypatch):
        """Make every index a large one, and the machine one that measures as told."""
        monkeypatch.setattr(scan, "LARGE", 0)
        return lambda trial: monkeypatch.setattr(scan, "measure", lambda *_: trial)

    @pytest.mark.parametrize(
        ("trial", "default", "codes"),
        [
            (QUICK_INTEGERS, "integer", "integer"),
            (SLOW_INTEGERS, "exact", "widened"),
            (WRONG_INTEGERS, "exact", "widened"),
            (SLOW_HALVES, "widened", "widened"),
            (Trial(exact=1.0, integer=0.95, widened=1.0, page=0.0), "exact", "integer"),
        ],
    )
    def test_the_quickest_is_taken(self, machine, trial, default, codes):
        machine(trial)
        scanner = Scanner(make_flat(3000))
        assert (scanner.way(10), scanner.way(10, exact=True), scanner.way(10, exact=False)) == (default, "exact", codes)

    def test_rescoring_counts(self):
        assert Trial(1.0, 0.3, 1.0, page=0.01).way(numbers=100, pages=85, page_numbers=0.01) == "integer"
        assert Trial(1.0, 0.3, 1.0, page=1.0).way(numbers=100, pages=85, page_numbers=0.01) == "exact"
        assert Trial(1.0, 0.3, 1.0, page=0.01).way(numbers=100, pages=85, page_numbers=1.0) == "exact"

    @pytest.mark.parametrize("trial", [SLOW_INTEGERS, WRONG_INTEGERS])
    def test_integers_are_left_alone_where_they_are_slow(self, machine, monkeypatch, trial):
        machine(trial)

        def product(*_):
            raise AssertionError("multiplied integers")

        monkeypatch.setattr(torch, "_int_mm", product)
        scanner, queries = Scanner(make_flat(3000)), queries_of(5)
        pages = [[p for p, _ in hits] for hits in scanner.top(queries, 10, exact=True)]
        for exact in (None, False):
            assert [[p for p, _ in hits] for hits in scanner.top(queries, 10, exact=exact)] == pages

    @pytest.mark.parametrize("dim", [24, 128])
    @pytest.mark.parametrize("allowed", [None, torch.arange(3000) % 3 == 0])
    def test_all_ways_answer_alike_to_the_bit(self, machine, dim, allowed):
        flat, queries, answers = make_flat(3000, dim), queries_of(20, dim), []
        for trial in (QUICK_INTEGERS, SLOW_INTEGERS, SLOW_HALVES):
            machine(trial)
            answers.append(Scanner(flat).top(queries, 10, allowed))
        assert answers[0] == answers[1] == answers[2]

    @pytest.mark.parametrize("dim", [24, 128])
    def test_codes_score_alike_as_integers_and_as_floats(self, monkeypatch, dim):
        # Not every machine's own product is right: that is what the trial finds out.
        monkeypatch.setattr(torch, "_int_mm", lambda a, b: a.int() @ b.int())
        scanner, queries = Scanner(make_flat(500, dim)), queries_of(20, dim)
        assert torch.equal(scanner.approximate(queries), scanner.approximate(queries, widened=True))

    def test_pages_that_are_copies_come_in_their_order(self, machine):
        flat = make_flat(40)
        copies = FlatIndex(
            1, np.tile(flat.vectors[:1], (300, 1)), np.tile(flat.codes[:1], (300, 1)), np.ones(300, np.int64),
            flat.scale, flat.pages,
        )  # fmt: skip
        for trial in (QUICK_INTEGERS, SLOW_INTEGERS, SLOW_HALVES):
            machine(trial)
            (hits,) = Scanner(copies).top(queries_of(1), 10)
            assert [p for p, _ in hits] == list(range(10))

    def test_small_indexes_are_not_tried(self, monkeypatch):
        monkeypatch.delattr(scan, "measure")
        assert Scanner(make_flat(50)).way(10) == "exact"


class TestMeasure:
    @pytest.fixture(autouse=True)
    def fresh(self):
        scan.measure.cache_clear()
        yield
        scan.measure.cache_clear()

    @pytest.mark.parametrize("dim", [8, 128, 3072])
    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
    def test_once_a_process(self, dim, dtype):
        before = torch.get_num_threads()
        trial = scan.measure(dim, dtype)
        assert all(seconds > 0 for seconds in vars(trial).values())
        assert scan.measure(dim, dtype) is trial
        assert torch.get_num_threads() == before

    def test_integers_that_overflow_do_not_count(self, monkeypatch):
        # Without VNNI, one side is made unsigned, and pairs of products are added in 16 bits.
        def saturating(a, b):
            pairs = (a.int()[:, :, None] * (b.int() + 128)).unflatten(1, (-1, 2)).sum(2)
            return pairs.clamp(-(2**15), 2**15 - 1).sum(1) - 128 * a.int().sum(1, keepdim=True)

        monkeypatch.setattr(torch, "_int_mm", saturating)
        assert scan.measure(32, torch.float16).integer == math.inf

    def test_integers_that_are_not_there_do_not_count(self, monkeypatch):
        def missing(*_):
            raise NotImplementedError("no such kernel")

        monkeypatch.setattr(torch, "_int_mm", missing)
        assert scan.measure(32, torch.float16).codes == "widened"


@pytest.mark.parametrize("exact", [True, False])
def test_systems_that_do_not_tell_the_processors_of_a_process(monkeypatch, exact):
    expected = Scanner(make_flat()).top(queries_of(2), 5, exact=exact)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert Scanner(make_flat()).top(queries_of(2), 5, exact=exact) == expected


def test_the_first_of_equal_pages_are_the_best():
    assert first_best(torch.tensor([2.0, 1.0, 2.0, 3.0, 2.0, 0.0]), 3).tolist() == [0, 2, 3]
    assert first_best(torch.tensor([1.0, 2.0]), 2).tolist() == [0, 1]
