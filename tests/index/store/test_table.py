import os
import threading
from dataclasses import asdict

import pytest

from anchorfold.errors import DamagedError, DiskFullError, MismatchError, NotAnIndexError
from anchorfold.index.store import catalogue, merging
from anchorfold.index.store.durable import replace_synced
from anchorfold.index.store.settings import FORMAT, IndexSettings
from anchorfold.index.store.table import PageTable
from tests.index.store.test_pages import row
from tests.number_reader import index_settings


@pytest.fixture
def table(tmp_path):
    return PageTable.create(tmp_path / "my.index", index_settings())


def pages(table, live=True):
    return sorted((page.source, page.page, page.version.digest) for page in table.pages(live=live))


def segment_files(table):
    return sorted(os.listdir(table.folder / "segments"))


def test_settings_of_a_newer_version_are_no_damage(table):
    with pytest.raises(MismatchError, match="made by a newer version of anchorfold"):
        IndexSettings.from_dict({**asdict(table.settings), "colour": "blue"})


def test_rows_survive_opening_again(table):
    table.append([row(1), row(2)])
    again = PageTable.open(table.folder)
    assert again.settings == table.settings
    assert pages(again) == [("/a/b.pdf", 1, "d"), ("/a/b.pdf", 2, "d")]


def test_a_reader_sees_old_or_new_pages_never_both_or_neither(table):
    table.append([row(p, digest="old") for p in (1, 2, 3)])
    reader = PageTable.open(table.folder)
    seen = set()
    for step in (
        lambda: table.append([row(1, digest="new", live=False)]),
        lambda: table.append([row(2, digest="new", live=False)]),
        lambda: table.promote("/a/b.pdf", "new", 7, 8),
        table.tidy,
    ):
        step()
        reader.refresh()
        seen.add(tuple(pages(reader)))
    old = tuple(("/a/b.pdf", p, "old") for p in (1, 2, 3))
    new = tuple(("/a/b.pdf", p, "new") for p in (1, 2))
    assert seen == {old, new}
    assert pages(table, live=False) == list(new)


def test_every_verb_is_one_commit(table):
    table.append([row(1, digest="old"), row(1, digest="new", live=False), row(1, source="/c.pdf")])
    for step in (
        lambda: table.promote("/a/b.pdf", "new", 7, 8),
        lambda: table.touch("/a/b.pdf", 7, 8),
        lambda: table.move({"/a/b.pdf": "/x/b.pdf", "/c.pdf": "/x/c.pdf"}),
        lambda: table.remove(["/x/b.pdf", "/x/c.pdf"]),
    ):
        before = table.version
        step()
        assert table.version == before + 1
    assert pages(table, live=False) == []


def test_promotion_drops_every_other_version(table):
    table.append([row(1, digest="old"), row(1, digest="older", live=False), row(1, digest="new", live=False)])
    table.promote("/a/b.pdf", "new", 7, 8)
    assert pages(table, live=False) == [("/a/b.pdf", 1, "new")]


def test_touch_and_move_change_what_they_should(table):
    table.append([row(1), row(1, source="/c.pdf", document="c.pdf")])
    table.touch("/a/b.pdf", 70, 80)
    table.move({"/a/b.pdf": "/moved/b.pdf"})
    states = PageTable.open(table.folder).documents()
    assert set(states) == {"/moved/b.pdf", "/c.pdf"}
    assert (states["/moved/b.pdf"].size, states["/moved/b.pdf"].modified) == (70, 80)
    assert states["/c.pdf"].size == 3


def test_documents_tells_live_and_staged_pages_apart(table):
    table.append([row(1, digest="old"), row(2, digest="old"), row(1, digest="new", live=False)])
    table.append([row(5, source="/c.pdf", document="c.pdf")])
    states = table.documents()
    state = states["/a/b.pdf"]
    assert (state.digest, state.have, state.staged) == ("old", {1, 2}, {"new": {1}})
    assert not states["/c.pdf"].complete


def test_quotes_in_names(table):
    name = 'it\'s; DROP TABLE "x" -- ü.pdf'
    table.append([row(1, source=name), row(1)])
    assert PageTable.open(table.folder).page(name, 1).source == name
    table.remove([name])
    assert pages(table) == [("/a/b.pdf", 1, "d")]


def test_many_commits_stay_few_files(table):
    for p in range(1, 60):
        table.append([row(p, vectors=1 + p % 7)])
    assert len(segment_files(table)) < 2 * merging.TIER
    assert [page for _, page, _ in pages(table)] == list(range(1, 60))
    for p in range(1, 60):
        stored = table.page("/a/b.pdf", p)
        expected = row(p, vectors=1 + p % 7).encoded
        assert abs(stored.vectors - expected.vectors.numpy()).max() < 1e-3
        assert stored.encoded().groups.tolist() == expected.groups.tolist()


def test_merged_pages_lie_sorted_by_length(table):
    for p in range(1, 10):
        table.append([row(p, vectors=9 - p % 7), row(100 + p, encoded=None, problem="damaged")])
    for segment in table.segments().values():
        assert segment.kept.tolist() == sorted(segment.kept.tolist())
    assert {page.problem for page in table.pages() if page.page > 100} == {"damaged"}


def test_tidying_twice_changes_nothing_more(table, monkeypatch):
    monkeypatch.setattr(merging, "SMALLEST", 9_000)  # seven small ones, and a larger one that shrinks to their size
    for number in range(7):
        table.append([row(1, source=f"/{number}.pdf", thumbnail=b"x" * 1000)])
    table.append([row(p, thumbnail=b"x" * 1000) for p in range(1, 12)] + [row(1, source="/8.pdf")])
    table.remove(["/a/b.pdf"])
    table.tidy()
    assert len(segment_files(table)) == 1
    version = table.version
    table.tidy()
    assert table.version == version


def test_what_was_removed_leaves_the_disk(table):
    table.append([row(p, thumbnail=b"x" * 5000) for p in range(1, 21)])
    table.append([row(p, source="/c.pdf", thumbnail=b"x" * 5000) for p in range(1, 11)])
    before = sum(path.stat().st_size for path in (table.folder / "segments").iterdir())
    table.remove(["/a/b.pdf"])
    table.tidy()
    after = sum(path.stat().st_size for path in (table.folder / "segments").iterdir())
    assert after < 0.4 * before
    assert len(pages(table)) == 10
    table.remove(["/c.pdf"])
    table.tidy()
    assert segment_files(table) == []


def test_staged_pages_survive_merging(table):
    table.append([row(p, digest="old") for p in (1, 2)])
    for p in range(1, 12):
        table.append([row(p, digest="new", live=False)])
    table.tidy()
    assert table.documents()["/a/b.pdf"].staged == {"new": set(range(1, 12))}


def test_a_reader_goes_on_while_what_it_maps_is_merged_away(table):
    table.append([row(p) for p in range(1, 8)])
    reader = PageTable.open(table.folder)
    mapped = reader.page("/a/b.pdf", 3)
    unopened = PageTable.open(table.folder)
    table.remove(["/a/b.pdf"])
    table.append([row(8, source="/c.pdf")])
    table.tidy()
    assert mapped.vectors.shape == (5, 16)
    with pytest.raises(DamagedError, match="missing"):
        pages(unopened)
    assert unopened.snapshot(pages) == [("/c.pdf", 8, "d")]


def test_left_overs_of_writers_that_died_go(table):
    table.append([row(1)])
    (table.folder / "segments" / "00000099.segment").write_bytes(b"half")
    (table.folder / "logs" / "00000077.log").write_bytes(b"half")
    (table.folder / "head.part").write_bytes(b"half")
    log = next((table.folder / "logs").glob("00000001.log"))
    log.write_bytes(log.read_bytes() + b"0000 torn")
    again = PageTable.open(table.folder)
    assert len(pages(again)) == 1
    again.append([row(2)])
    again.tidy()
    assert len(pages(PageTable.open(table.folder))) == 2
    assert segment_files(table) == ["00000001.segment", "00000002.segment"]
    assert os.listdir(table.folder / "logs") == ["00000001.log"]


def test_a_long_log_is_written_anew_and_readers_follow(table, monkeypatch):
    monkeypatch.setattr(catalogue, "SPARE", 500)
    reader = PageTable.open(table.folder)
    seen = []
    for p in range(1, 40):
        table.append([row(p)])
        table.touch("/a/b.pdf", p, p)
        reader.refresh()
        seen.append(reader.version)
        assert (len(pages(reader)), reader.documents()["/a/b.pdf"].size) == (p, p)
    assert seen == sorted(seen)
    (log,) = (table.folder / "logs").iterdir()
    assert log.name > "00000003.log"
    assert log.stat().st_size < 5000


def test_numbers_are_not_given_out_twice(table, monkeypatch):
    monkeypatch.setattr(catalogue, "SPARE", 0)
    table.append([row(1)])
    table.remove(["/a/b.pdf"])
    PageTable.open(table.folder).append([row(1, source="/c.pdf")])
    assert pages(PageTable.open(table.folder), live=False) == [("/c.pdf", 1, "d")]


@pytest.mark.parametrize("failing", ["segment", "log", "head"])
def test_a_full_disk_changes_nothing(table, monkeypatch, failing):
    table.append([row(1)])
    real = os.fsync
    calls = []

    def full(handle):
        calls.append(os.readlink(f"/proc/self/fd/{handle}"))
        if failing in calls[-1].rpartition("/")[2]:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFullError):
        table.append([row(2)])
    assert len(pages(PageTable.open(table.folder))) == 1
    monkeypatch.undo()
    table.append([row(3)])
    assert [page for _, page, _ in pages(PageTable.open(table.folder))] == [1, 3]


def test_a_commit_that_is_cut_short_after_it_stands_is_known_to_the_writer(table, monkeypatch):
    real = replace_synced

    def interrupted(*arguments):
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(catalogue, "replace_synced", interrupted)
    with pytest.raises(KeyboardInterrupt):
        table.append([row(1)])
    monkeypatch.undo()
    table.append([row(2)])
    assert len(pages(PageTable.open(table.folder))) == 2


def test_every_file_is_synced(tmp_path, monkeypatch):
    synced = set()
    real = os.fsync

    def fsync(handle):
        synced.add(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    table = PageTable.create(tmp_path / "my.index", index_settings())
    table.append([row(1)])
    table.append([row(2)])
    files = {os.path.join(at, f) for at, _, names in os.walk(tmp_path / "my.index") for f in names}
    assert files - {str(tmp_path / "my.index" / "head")} <= synced
    folders = {"", "/logs", "/segments", "/head.part"}
    assert {f"{tmp_path}/my.index{name}" for name in folders} <= synced


def test_what_is_no_index(tmp_path):
    with pytest.raises(NotAnIndexError, match="does not exist"):
        PageTable.open(tmp_path / "nowhere")
    with pytest.raises(NotAnIndexError, match="is not an index"):
        PageTable.open(tmp_path)
    (tmp_path / "cut" / "logs").mkdir(parents=True)
    with pytest.raises(NotAnIndexError, match="cut short"):
        PageTable.open(tmp_path / "cut")


def test_a_later_format_is_refused(tmp_path):
    PageTable.create(tmp_path / "later", index_settings(format=FORMAT + 1))
    with pytest.raises(MismatchError, match=f"format {FORMAT + 1}"):
        PageTable.open(tmp_path / "later")


def test_settings_are_kept(tmp_path):
    settings = index_settings(bits=4, bidirectional=True, seed=3, provenance=False)
    PageTable.create(tmp_path / "my.index", settings)
    assert PageTable.open(tmp_path / "my.index").settings == settings


def test_a_table_of_nothing_can_be_tidied(table):
    table.tidy()
    assert pages(table) == []


def test_reads_go_on_while_a_writer_merges(table, monkeypatch):
    monkeypatch.setattr(merging, "GARBAGE", 0.0)  # every tidying rewrites everything
    table.append([row(p) for p in range(1, 6)])
    readers = [PageTable.open(table.folder) for _ in range(2)]
    problems, done = [], threading.Event()

    def read(reader):
        while not done.is_set():
            try:
                reader.refresh()
                assert 1 in reader.documents()["/a/b.pdf"].have
                stored = reader.snapshot(lambda snapshot: snapshot.page("/a/b.pdf", 1).encoded())
                assert len(stored) == 5
            except BaseException as error:
                problems.append(error)
                return

    threads = [threading.Thread(target=read, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    for page in range(6, 40):
        table.append([row(page)])
        table.tidy()
    done.set()
    for thread in threads:
        thread.join()
    assert problems == []


def test_segments_that_were_written_without_a_kind_of_blob_stay_readable(table, monkeypatch):
    table.append([row(1, thumbnail=b"picture")])
    for module in ("segment", "merging", "checking"):
        monkeypatch.setattr(f"anchorfold.index.store.{module}.BLOBS", ("provenance", "thumbnail", "problem", "text"))
    assert table.page("/a/b.pdf", 1).segment.blob("text", 0) == b""
    for p in range(2, 12):
        table.append([row(p)])
    assert len(segment_files(table)) < 8
    assert table.page("/a/b.pdf", 1).thumbnail == b"picture"
    assert table.page("/a/b.pdf", 1).segment.blob("text", 0) == b""


def test_a_reader_of_the_same_object_does_not_take_a_commit_back(table, monkeypatch):
    table.append([row(1)])
    real, waiting, done = catalogue.Catalogue.read, threading.Event(), threading.Event()

    def slow(self, before=None):
        state = real(self, before)
        if threading.current_thread() is not threading.main_thread():
            waiting.set()
            done.wait(0.3)
        return state

    monkeypatch.setattr(catalogue.Catalogue, "read", slow)
    other = PageTable.open(table.folder)
    other.append([row(2)])
    reader = threading.Thread(target=table.refresh)  # sees version 3, and tells so late
    reader.start()
    waiting.wait(5)
    table.refresh()
    table.append([row(3)])
    done.set()
    reader.join()
    table.append([row(4)])
    assert [page for _, page, _ in pages(PageTable.open(table.folder))] == [1, 2, 3, 4]
