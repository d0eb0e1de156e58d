"""The candidate stage against a scan of everything."""

import numpy as np
import pytest
import torch

from anchorfold.page import EncodedPage
from anchorfold.retrieval import candidate_files, scan
from anchorfold.retrieval.agreement import agreement
from anchorfold.retrieval.candidate_files import CENTROIDS, open_candidates, update_lists
from anchorfold.retrieval.centroids import Nearest, centroid_count, find_centroids, unit
from anchorfold.retrieval.live_pages import LivePages
from anchorfold.retrieval.scan import Scanner
from anchorfold.storage.checking import check
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.records import PageRow
from anchorfold.storage.repair import repair
from tests.storage.page_rows import flip_bit, make_store

DIM, WORDS = 32, 400


def words():
    return unit(np.random.default_rng(0).normal(size=(WORDS, DIM)).astype(np.float32))


def page_row(number, rng, source):
    """A page of words that are seen with some noise."""
    length = int(rng.integers(5, 12))
    seen = words()[rng.choice(WORDS, length)] + 0.1 * rng.normal(size=(length, DIM)).astype(np.float32)
    every = torch.arange(length)
    encoded = EncodedPage(torch.from_numpy(unit(seen).astype(np.float32)), every, every, torch.ones(length))
    return PageRow(source, source[1:], number, 10**6, source, 1, 1, True, encoded)


def queries_of(count, seed=3):
    rng = np.random.default_rng(seed)
    return [words()[rng.choice(WORDS, int(rng.integers(2, 6)))] for _ in range(count)]


@pytest.fixture(scope="module", autouse=True)
def small_numbers():
    """Everything happens at a hundredth of its size."""
    patch = pytest.MonkeyPatch()
    patch.setattr(candidate_files, "FIRST_PAGES", 1000)
    patch.setattr(candidate_files, "LISTED_ROWS", 100)
    patch.setattr(scan, "CANDIDATES", 120)
    yield
    patch.undo()


@pytest.fixture(scope="module", params=[16, 4])
def store(request, tmp_path_factory):
    rng = np.random.default_rng(1)
    rows = [page_row(number, rng, f"/{number % 50}.pdf") for number in range(1, 1501)]
    parts = [rows[start : start + 500] for start in range(0, 1500, 500)]
    store = make_store(tmp_path_factory.mktemp("many") / "my.index", *parts, dim=DIM, bits=request.param)
    with store.writing():
        update_lists(store)
    return store


def scanner_of(store):
    def make(snapshot):
        live = LivePages.of(snapshot)
        return Scanner(live, open_candidates(snapshot, live))

    return store.read(make)


def sources_of(store, scanner, ranking):
    """Documents of ranked pages, in order."""
    located = [scanner.live.locate(number) for number, _ in ranking]
    versions = [int(segment.version[row]) for segment, row in located]
    known = store.read(lambda snapshot: snapshot.versions_by_id(versions))
    return [known[version].source for version in versions]


def of_documents(store, scanner, condition):
    """`(rows,)` true for pages of documents whose name meets a condition."""
    versions = store.read(lambda snapshot: [v.id for v in snapshot.versions() if condition(v.name)])
    return scanner.live.of_versions(np.array(versions, np.int64))


def list_files(store):
    return {path.name for path in (store.folder / "vectors").glob("*.ivf")} - {CENTROIDS}


def overlap(scanner, queries, **options):
    exact = [{p for p, _ in r} for r in scanner.top_k(queries, 10, exact=True, allowed=options.get("allowed"))]
    fast = [{p for p, _ in r} for r in scanner.top_k(queries, 10, **options)]
    return np.mean([len(a & b) / len(a) for a, b in zip(exact, fast, strict=True)])


def test_candidates_contain_what_a_full_scan_ranks_first(store):
    scanner = scanner_of(store)
    assert scanner.candidates is not None
    assert overlap(scanner, queries_of(60)) > 0.95
    assert check(store.folder) == []


def test_scores_are_identical_to_those_of_a_full_scan(store):
    scanner, queries = scanner_of(store), queries_of(20)
    for exact, fast in zip(scanner.top_k(queries, 10, exact=True), scanner.top_k(queries, 10), strict=True):
        known = dict(exact)
        assert all(known[page] == score for page, score in fast if page in known)


def test_filters_lose_no_recall(store):
    scanner, queries = scanner_of(store), queries_of(20)
    few = of_documents(store, scanner, lambda name: name == "7.pdf")
    assert overlap(scanner, queries, allowed=few) == 1
    many = of_documents(store, scanner, lambda name: name < "3")
    assert overlap(scanner, queries, allowed=many) > 0.9
    for ranking in scanner.top_k(queries, 10, many):
        assert all(source < "/3" for source in sources_of(store, scanner, ranking))


def test_agreement_grows_with_the_number_of_candidates(store):
    figures = agreement(scanner_of(store), [*queries_of(30), np.zeros((0, DIM), np.float32)], counts=(12, 60, 10**6))
    overlaps = [f.overlap for f in figures]
    assert overlaps == sorted(overlaps)
    assert overlaps[0] < 0.9
    assert (figures[-1].overlap, figures[-1].first) == (1, 1)


def test_a_query_without_candidates_is_scored_by_a_full_scan(store):
    scanner = scanner_of(store)
    scanner.candidates.lists.clear()
    assert len(scanner.top_k(queries_of(1), 10)[0]) == 10


def test_added_and_removed_pages_are_respected_at_once(tmp_path):
    rng = np.random.default_rng(2)
    rows = [page_row(number, rng, f"/{number % 10}.pdf") for number in range(1, 1201)]
    store = make_store(tmp_path / "my.index", rows, dim=DIM, bits=4)
    new = page_row(1, rng, "/new.pdf")
    with store.writing():
        update_lists(store)
        version = store.version
        update_lists(store)
        assert store.version == version  # there was nothing to do
        store.append([new])
        scanner = scanner_of(store)
        (ranking,) = scanner.top_k([new.encoded.vectors], 1)
        assert sources_of(store, scanner, ranking) == ["/new.pdf"]
        (gone,) = sources_of(store, scanner, scanner.top_k(queries_of(1), 1)[0])
        store.remove([gone])
        scanner = scanner_of(store)
        for ranking in scanner.top_k(queries_of(20), 10):
            assert len(ranking) == 10
            assert gone not in sources_of(store, scanner, ranking)
        store.remove([f"/{i}.pdf" for i in range(10)])
        store.finish()
    assert list_files(store) == set()


def test_posting_lists_belong_to_their_vector_files(tmp_path):
    store = make_store(tmp_path / "my.index", dim=DIM, bits=1)
    rng = np.random.default_rng(2)
    with store.writing():
        for start in range(0, 1200, 150):
            store.append([page_row(start + i, rng, f"/{start}.pdf") for i in range(150)])
            update_lists(store)
        update_lists(store)
    scanner = scanner_of(store)
    large = {i for i, segment in enumerate(scanner.live.segments) if len(segment) >= 100}
    assert set(scanner.candidates.lists) == large
    assert list_files(store) == {f"{scanner.live.segment_numbers[i]:08}.ivf" for i in large}
    assert check(store.folder) == []


def test_centroids_are_computed_again_when_the_index_has_grown(store, monkeypatch):
    path = store.folder / "vectors" / CENTROIDS
    before = path.stat().st_ino
    monkeypatch.setattr(candidate_files, "GROWTH", 0.5)
    with store.writing():
        update_lists(store)
    assert path.stat().st_ino != before
    assert len(scanner_of(store).candidates.lists) == len(list_files(store)) > 0
    assert overlap(scanner_of(store), queries_of(20)) > 0.9


def test_damaged_lists_are_found_ignored_by_searches_and_built_again(tmp_path):
    rng = np.random.default_rng(2)
    rows = [page_row(i, rng, "/a.pdf") for i in range(1, 1101)]
    store = make_store(tmp_path / "my.index", rows, dim=DIM, bits=1)
    with store.writing():
        update_lists(store)
    expected = store.search_visual(SearchRequest(vectors=queries_of(3), top_k=5, exact=True))
    files = sorted((store.folder / "vectors").glob("*.ivf"))
    assert len(files) == 2
    for path in files:
        flip_bit(path, 8 * (path.stat().st_size // 3))
    assert {damage.file for damage in check(store.folder)} == {f"vectors/{path.name}" for path in files}
    assert scanner_of(store).candidates is None
    assert store.search_visual(SearchRequest(vectors=queries_of(3), top_k=5)) == expected
    assert {damage.repair for damage in repair(store.folder)} == {
        "moved to lost/; built again by the next `anchorfold index`"
    }
    assert check(store.folder) == []
    with store.writing():
        update_lists(store)
    assert scanner_of(store).candidates is not None
    with store.writing():
        for path in files:
            flip_bit(path, 8 * (path.stat().st_size // 3))
        update_lists(store)  # without a repair
    assert scanner_of(store).candidates is not None
    assert check(store.folder) == []


def test_lists_of_other_vector_files_are_ignored(store):
    first, *_, last = (store.folder / "vectors" / name for name in sorted(list_files(store)))
    data = first.read_bytes()
    first.write_bytes(last.read_bytes())
    assert len(scanner_of(store).candidates.lists) == len(list_files(store)) - 1
    first.write_bytes(data)
    assert len(scanner_of(store).candidates.lists) == len(list_files(store))


def test_centroids():
    sample = np.concatenate([words()[:8] + 0.05 * np.random.default_rng(i).normal(size=(8, DIM)) for i in range(40)])
    centroids = find_centroids(unit(sample).astype(np.float32), 64)
    assert np.allclose(np.linalg.norm(centroids, axis=1), 1, atol=1e-5)
    assert (unit(sample) @ centroids.T).max(1).min() > 0.9
    assert np.array_equal(Nearest(centroids)(sample), (sample @ centroids.T).argmax(1))
    assert np.array_equal(centroids, find_centroids(unit(sample).astype(np.float32), 64))


def test_nearest_of_many_centroids():
    rng = np.random.default_rng(0)
    centroids = unit(rng.normal(size=(3000, DIM)).astype(np.float32))
    sample = unit(centroids[rng.integers(0, 3000, 500)] + 0.05 * rng.normal(size=(500, DIM)).astype(np.float32))
    nearest, numbers = (sample @ centroids.T).argmax(1), Nearest(centroids)(sample)
    assert (nearest == numbers).mean() > 0.9
    assert ((sample * centroids[nearest]).sum(1) - (sample * centroids[numbers]).sum(1)).mean() < 0.03
    assert np.array_equal(numbers, Nearest(centroids)(sample)), "the same each time"


def test_centroids_grow_with_the_vectors():
    assert [centroid_count(n) for n in (1, 10**6, 10**9)] == [64, 8192, 32768]
