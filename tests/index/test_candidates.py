"""The candidate stage against a scan of everything."""

import numpy as np
import pytest
import torch
from anchorfold.index.store.pages import PageRow
from anchorfold.index.store.table import PageTable

from anchorfold.index import candidate_files, scan
from anchorfold.index.agreement import agreement
from anchorfold.index.candidate_files import newest_centroids, open_candidates, update_lists
from anchorfold.index.centroids import Nearest, centroid_count, find_centroids, unit
from anchorfold.index.live import LivePages
from anchorfold.index.scan import Scanner
from anchorfold.index.store.checking import check, repair_index
from anchorfold.page import EncodedPage
from tests.number_reader import index_settings

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
    patch.setattr(scan, "FEW_PAGES", 40)
    yield
    patch.undo()


@pytest.fixture(scope="module", params=[16, 4])
def table(request, tmp_path_factory):
    table = PageTable.create(tmp_path_factory.mktemp("many") / "my.index", index_settings(dim=DIM, bits=request.param))
    rng = np.random.default_rng(1)
    rows = [page_row(number, rng, f"/{number % 50}.pdf") for number in range(1, 1501)]
    for start in range(0, 1500, 500):
        table.append(rows[start : start + 500])
    update_lists(table)
    return table


def scanner_of(table):
    live = LivePages(table)
    return Scanner(live, open_candidates(table, live))


def overlap(scanner, queries, **options):
    exact = [{p for p, _ in r} for r in scanner.top(queries, 10, exact=True, allowed=options.get("allowed"))]
    fast = [{p for p, _ in r} for r in scanner.top(queries, 10, **options)]
    return np.mean([len(a & b) / len(a) for a, b in zip(exact, fast, strict=True)])


def test_candidates_find_what_a_scan_of_everything_finds(table):
    scanner = scanner_of(table)
    assert scanner.candidates is not None
    assert overlap(scanner, queries_of(60)) > 0.95
    assert check(table.folder) == []


def test_scores_are_those_of_the_scan_to_the_bit(table):
    scanner, queries = scanner_of(table), queries_of(20)
    for exact, fast in zip(scanner.top(queries, 10, exact=True), scanner.top(queries, 10), strict=True):
        known = dict(exact)
        assert all(known[page] == score for page, score in fast if page in known)


def test_filters_lose_nothing(table):
    scanner, queries = scanner_of(table), queries_of(20)
    few = scanner.live.of_documents(lambda version: version.name == "7.pdf")
    assert overlap(scanner, queries, allowed=few) == 1
    many = scanner.live.of_documents(lambda version: version.name < "3")
    assert overlap(scanner, queries, allowed=many) > 0.9
    for ranking in scanner.top(queries, 10, many):
        assert all(scanner.live.page(page)[0].name < "3" for page, _ in ranking)


def test_more_candidates_agree_better_and_all_agree_wholly(table):
    figures = agreement(scanner_of(table), [*queries_of(30), np.zeros((0, DIM), np.float32)], counts=(12, 60, 10**6))
    overlaps = [f.overlap for f in figures]
    assert overlaps == sorted(overlaps)
    assert overlaps[0] < 0.9
    assert (figures[-1].overlap, figures[-1].first) == (1, 1)


def test_a_query_that_is_near_to_nothing_is_answered_by_a_scan(table):
    scanner = scanner_of(table)
    scanner.candidates.lists.clear()
    assert len(scanner.top(queries_of(1), 10)[0]) == 10


def test_what_is_added_or_removed_is_respected_at_once(tmp_path):
    table = PageTable.create(tmp_path / "my.index", index_settings(dim=DIM, bits=4))
    rng = np.random.default_rng(2)
    table.append([page_row(number, rng, f"/{number % 10}.pdf") for number in range(1, 1201)])
    update_lists(table)
    version = table.version
    update_lists(table)
    assert table.version == version  # nothing was left to do
    new = page_row(1, rng, "/new.pdf")
    table.append([new])
    scanner = scanner_of(table)
    ((first, *_),) = scanner.top([new.encoded.vectors], 1)
    assert scanner.live.page(first[0])[0].name == "new.pdf"
    gone = scanner.live.page(scanner.top(queries_of(1), 1)[0][0][0])[0].source
    table.remove([gone])
    scanner = scanner_of(table)
    for ranking in scanner.top(queries_of(20), 10):
        assert len(ranking) == 10
        assert gone not in {scanner.live.page(page)[0].source for page, _ in ranking}
    table.remove([f"/{i}.pdf" for i in range(10)])
    table.tidy()
    assert not [name for name in table.state.extras if name.endswith(".lists")]


def test_lists_go_with_their_segments_and_come_again(tmp_path):
    table = PageTable.create(tmp_path / "my.index", index_settings(dim=DIM, bits=1))
    rng = np.random.default_rng(2)
    for start in range(0, 1200, 150):
        table.append([page_row(start + i, rng, f"/{start}.pdf") for i in range(150)])
        update_lists(table)
    update_lists(table)
    live = LivePages(table)
    assert set(open_candidates(table, live).lists) == {i for i, s in enumerate(live.segments) if len(s) >= 100}
    files = {path.name for path in (table.folder / "segments").iterdir()}
    assert files == {*(f"{n:08}.segment" for n in table.state.segments), *table.state.extras}


def test_centroids_are_made_anew_when_the_index_has_grown(table, monkeypatch):
    before = newest_centroids(table)
    monkeypatch.setattr(candidate_files, "GROWTH", 0.5)
    update_lists(table)
    assert newest_centroids(table) == before + 1
    assert len([name for name in table.state.extras if name.endswith(".centroids")]) == 1
    assert overlap(scanner_of(table), queries_of(20)) > 0.9


def test_a_flipped_bit_in_a_list_is_found_and_repair_drops_it(tmp_path):
    table = PageTable.create(tmp_path / "my.index", index_settings(dim=DIM, bits=1))
    rng = np.random.default_rng(2)
    table.append([page_row(i, rng, "/a.pdf") for i in range(1, 1101)])
    update_lists(table)
    for name in list(table.state.extras):
        path = table.folder / "segments" / name
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 16
        path.write_bytes(data)
    assert {damage.file for damage in check(table.folder)} == {f"segments/{name}" for name in table.state.extras}
    repair_index(table.folder)
    assert check(table.folder) == []
    again = PageTable.open(table.folder)
    assert scanner_of(again).candidates is None
    update_lists(again)
    assert scanner_of(again).candidates is not None


def test_centroids():
    sample = np.concatenate([words()[:8] + 0.05 * np.random.default_rng(i).normal(size=(8, DIM)) for i in range(40)])
    centroids = find_centroids(unit(sample).astype(np.float32), 64)
    assert np.allclose(np.linalg.norm(centroids, axis=1), 1, atol=1e-5)
    assert (unit(sample) @ centroids.T).max(1).min() > 0.9
    assert np.array_equal(Nearest(centroids)(sample), (sample @ centroids.T).argmax(1))
    assert np.array_equal(centroids, find_centroids(unit(sample).astype(np.float32), 64))


def test_many_centroids_are_found_by_their_groups():
    rng = np.random.default_rng(0)
    centroids = unit(rng.normal(size=(3000, DIM)).astype(np.float32))
    sample = unit(centroids[rng.integers(0, 3000, 500)] + 0.05 * rng.normal(size=(500, DIM)).astype(np.float32))
    nearest, numbers = (sample @ centroids.T).argmax(1), Nearest(centroids)(sample)
    assert (nearest == numbers).mean() > 0.9
    assert ((sample * centroids[nearest]).sum(1) - (sample * centroids[numbers]).sum(1)).mean() < 0.03
    assert np.array_equal(numbers, Nearest(centroids)(sample)), "the same each time"


def test_centroids_grow_with_the_vectors():
    assert [centroid_count(n) for n in (1, 10**6, 10**9)] == [64, 8192, 32768]
