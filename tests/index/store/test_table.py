import os
import threading

import lancedb
import pytest

from anchorfold.errors import DamagedError, MismatchError, NotAnIndexError
from anchorfold.index.store import table as module
from anchorfold.index.store.table import PageTable
from tests.index.store.test_schema import row
from tests.number_reader import index_settings


@pytest.fixture
def table(tmp_path):
    return PageTable.create(tmp_path / "my.index", index_settings())


def pages(table, live=True):
    return sorted((b["source"][i].as_py(), b["page"][i].as_py(), b["digest"][i].as_py())
                  for b in table.scan(["source", "page", "digest"], live=live) for i in range(b.num_rows))  # fmt: skip


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
        lambda: table.promote("/a/b.pdf", "new"),
        table.tidy,
    ):
        step()
        reader.refresh()
        seen.add(tuple(pages(reader)))
    old = tuple(("/a/b.pdf", p, "old") for p in (1, 2, 3))
    new = tuple(("/a/b.pdf", p, "new") for p in (1, 2))
    assert seen == {old, new}
    assert pages(table, live=False) == list(new)


def test_promotion_is_one_commit(table, monkeypatch):
    table.append([row(1, digest="old"), row(1, digest="new", live=False)])
    monkeypatch.setattr(PageTable, "drop_staged", lambda *_: None)  # as if the process died before clearing up
    before = table.version
    table.promote("/a/b.pdf", "new")
    assert table.version == before + 1
    assert pages(table) == [("/a/b.pdf", 1, "new")]


def test_documents_tells_live_and_staged_pages_apart(table):
    table.append([row(1, digest="old"), row(2, digest="old"), row(1, digest="new", live=False)])
    table.append([row(5, source="/c.pdf", document="c.pdf")])
    found = table.documents()
    assert (found["/a/b.pdf"].digest, found["/a/b.pdf"].have, found["/a/b.pdf"].staged) == ("old", {1, 2}, {"new": {1}})
    assert not found["/c.pdf"].complete


def test_quotes_in_names(table):
    name = 'it\'s; DROP TABLE "x" -- ü.pdf'
    table.append([row(1, source=name), row(1)])
    assert table.page(name, 1, ["source"])["source"][0].as_py() == name
    table.remove([name])
    assert pages(table) == [("/a/b.pdf", 1, "d")]


def test_many_commits_stay_few_files(table, monkeypatch):
    monkeypatch.setattr(module, "MANY_FILES", 5)
    for p in range(1, 24):
        table.append([row(p)])
    assert len(os.listdir(table.folder / "pages.lance" / "data")) < 10
    assert len(pages(table)) == 23


def test_a_reader_whose_version_was_tidied_away_reads_the_newest(table):
    for p in range(1, 8):
        table.append([row(p)])
    reader = PageTable.open(table.folder)
    table.append([row(8)])
    table.tidy()
    assert len(reader.consistently(lambda: pages(reader))) == 8


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
    files = {os.path.join(at, f) for at, _, names in os.walk(tmp_path / "my.index" / "pages.lance") for f in names}
    assert files <= synced
    assert str(tmp_path / "my.index" / "pages.lance" / "_versions") in synced


def test_what_is_no_index(tmp_path):
    with pytest.raises(NotAnIndexError, match="does not exist"):
        PageTable.open(tmp_path / "nowhere")
    with pytest.raises(NotAnIndexError, match="is not an index"):
        PageTable.open(tmp_path)
    lancedb.connect(tmp_path / "other").create_table("pages", data=[{"x": 1}])
    with pytest.raises(MismatchError, match="not written by anchorfold"):
        PageTable.open(tmp_path / "other")


@pytest.mark.parametrize("kind", ["data", "_versions"])
def test_a_damaged_file_is_one_line(table, kind):
    table.append([row(p) for p in range(1, 9)])
    for name in os.listdir(table.folder / "pages.lance" / kind):
        path = table.folder / "pages.lance" / kind / name
        path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(DamagedError, match="damaged") as caught:
        pages(PageTable.open(table.folder))
    assert "\n" not in str(caught.value)
    assert "backup" in str(caught.value)
    assert "remove" not in str(caught.value)


def test_a_table_of_nothing_can_be_tidied(table):
    table.finish()
    assert pages(table) == []


def test_reads_go_on_while_a_writer_tidies(table):
    table.append([row(p) for p in range(1, 6)])
    readers = [PageTable.open(table.folder) for _ in range(2)]
    problems, done = [], threading.Event()

    def read(reader):
        while not done.is_set():
            try:
                reader.refresh()
                assert 1 in reader.documents()["/a/b.pdf"].have
                assert reader.page("/a/b.pdf", 1, ["page"]) is not None
            except BaseException as error:
                problems.append(error)
                return

    threads = [threading.Thread(target=read, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    for page in range(6, 26):
        table.append([row(page)])
        table.tidy()
    done.set()
    for thread in threads:
        thread.join()
    assert problems == []
