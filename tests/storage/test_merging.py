"""Merging of vector files: few files, no page lost, and removed pages leave the disk."""

import pytest

from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage import segment as segments
from anchorfold.storage.checking import check
from anchorfold.storage.column_file import FileEntry
from anchorfold.storage.records import PageText
from anchorfold.storage.segment import tiers_to_merge
from tests.number_reader import index_settings
from tests.storage.page_rows import SOURCE, all_pages, live_pages, page_row, vector_files


@pytest.fixture
def store(tmp_path):
    """An empty store whose writer lock is held."""
    store = EmbeddedStore.create(tmp_path / "my.index", index_settings(text=True))
    with store.writing():
        yield store


def test_many_commits_make_few_files(store):
    for p in range(1, 60):
        store.append([page_row(p, vectors=1 + p % 7)])
    assert len(vector_files(store)) < 2 * segments.TIER
    assert [page for _, page, _ in live_pages(store)] == list(range(1, 60))
    for p in range(1, 60):
        encoded = store.read_page(SOURCE, p, lambda page: page.encoded())
        expected = page_row(p, vectors=1 + p % 7).encoded
        assert abs(encoded.vectors - expected.vectors).max() < 1e-3
        assert encoded.groups.tolist() == expected.groups.tolist()
    assert check(store.folder) == []


def test_pages_of_a_merged_file_are_sorted_by_length(store):
    for p in range(1, 10):
        store.append([page_row(p, vectors=9 - p % 7), page_row(100 + p, encoded=None, problem="damaged")])
    kept = store.read(lambda snapshot: [segment.kept.tolist() for segment in snapshot.segments().values()])
    assert kept == [sorted(lengths) for lengths in kept]
    problems = {store.read_page(SOURCE, 100 + p, lambda page: page.details()["problem"]) for p in range(1, 10)}
    assert problems == {"damaged"}


def test_a_second_run_changes_nothing(store, monkeypatch):
    monkeypatch.setattr(segments, "SMALLEST", 5_000)  # seven small files, and a larger one that shrinks to their size
    for number in range(7):
        store.append([page_row(1, source=f"/{number}.pdf")])
    store.append([page_row(p) for p in range(1, 30)] + [page_row(1, source="/8.pdf")])
    assert len(vector_files(store)) == 8
    store.remove([SOURCE])
    store.tidy()
    assert len(vector_files(store)) == 1
    version = store.version
    store.tidy()
    assert store.version == version


def test_removed_pages_leave_the_disk(store):
    def database_pages():
        return store.read(lambda snapshot: snapshot.connection.execute("PRAGMA page_count").fetchone()[0])

    def vector_bytes():
        return sum(path.stat().st_size for path in store.folder.rglob("*.seg"))

    words = " ".join(f"word{number}" for number in range(400))
    for source, pages in ((SOURCE, 60), ("/c.pdf", 20)):
        rows = [page_row(p, source=source, thumbnail=b"x" * 5000, text=PageText(words)) for p in range(1, pages + 1)]
        store.append(rows)
    bytes_before, pages_before = vector_bytes(), database_pages()
    store.remove([SOURCE])
    store.tidy()
    assert vector_bytes() < 0.4 * bytes_before
    assert database_pages() < 0.6 * pages_before
    assert len(live_pages(store)) == 20
    store.remove(["/c.pdf"])
    store.tidy()
    assert vector_files(store) == []
    assert all_pages(store) == []
    assert check(store.folder) == []


def test_staged_pages_survive(store):
    store.append([page_row(p, digest="old") for p in (1, 2)])
    for p in range(1, 12):
        store.append([page_row(p, digest="new", live=False)])
    store.tidy()
    assert store.stored_pages([SOURCE])[SOURCE]["new"] == set(range(1, 12))


def test_a_store_without_pages_can_be_tidied(store):
    store.tidy()
    assert live_pages(store) == []


def test_files_of_writers_that_were_killed_are_removed(store):
    store.append([page_row(1)])
    data = (store.folder / "vectors/00000001.seg").read_bytes()
    (store.folder / "vectors/00000077.seg").write_bytes(data)  # complete, and not registered
    (store.folder / "vectors/00000099.seg").write_bytes(b"half")
    again = EmbeddedStore.open(store.folder)
    assert len(live_pages(again)) == 1
    store.append([page_row(2)])
    store.tidy()
    assert len(live_pages(EmbeddedStore.open(store.folder))) == 2
    assert vector_files(store) == ["00000001.seg", "00000002.seg"]


def test_files_of_another_index_are_not_removed(store, tmp_path):
    other = EmbeddedStore.create(tmp_path / "other.index", index_settings())
    with other.writing():
        other.append([page_row(1)])
    data = (other.folder / "vectors/00000001.seg").read_bytes()
    (store.folder / "vectors/00000050.seg").write_bytes(data)
    store.append([page_row(1)])
    store.tidy()
    assert vector_files(store) == ["00000001.seg", "00000050.seg"]


def test_files_of_similar_size_are_merged():
    entries = {number: FileEntry(1, size, 0) for number, size in enumerate([1000] * 9 + [10**6] * 3 + [2**28] * 9)}
    assert tiers_to_merge(entries, 8) == [list(range(8))]
    assert tiers_to_merge(entries, 3) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
