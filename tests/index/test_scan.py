import threading

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfold import maxsim
from anchorfold.index.scan import Scanner, best_of, equal_blocks
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
