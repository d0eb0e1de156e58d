"""Writing to a store: commits, staged replacement, merging, removal, and what is left by writers that died."""

import os

import pytest

from anchorfold.errors import DamagedError, DiskFullError, NotAnIndexError, StoreError
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage import segment as segments
from anchorfold.storage.checking import check
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.records import PageText
from tests.number_reader import index_settings
from tests.storage.page_rows import SOURCE, all_pages, contents, live_pages, make_store, page_row, vector_files


@pytest.fixture
def store(tmp_path):
    """An empty store whose writer lock is held."""
    store = EmbeddedStore.create(tmp_path / "my.index", index_settings(text=True))
    with store.writing():
        yield store


def opened(store):
    return EmbeddedStore.open(store.folder)


class TestCommits:
    def test_rows_survive_opening_again(self, store):
        store.append([page_row(1), page_row(2)])
        again = opened(store)
        assert again.settings == store.settings
        assert live_pages(again) == [(SOURCE, 1, "d"), (SOURCE, 2, "d")]

    def test_a_reader_sees_old_or_new_pages_never_both_or_neither(self, store):
        store.append([page_row(p, digest="old") for p in (1, 2, 3)])
        reader, states = opened(store), set()
        for step in (
            lambda: store.append([page_row(1, digest="new", live=False)]),
            lambda: store.append([page_row(2, digest="new", live=False)]),
            lambda: store.promote(SOURCE, "new", 7, 8),
            store.tidy,
        ):
            step()
            states.add(tuple(live_pages(reader)))
        old = tuple((SOURCE, p, "old") for p in (1, 2, 3))
        new = tuple((SOURCE, p, "new") for p in (1, 2))
        assert states == {old, new}
        assert all_pages(store) == list(new)

    def test_every_write_is_one_commit(self, store):
        store.append([page_row(1, digest="old"), page_row(1, digest="new", live=False), page_row(1, source="/c.pdf")])
        for step in (
            lambda: store.promote(SOURCE, "new", 7, 8),
            lambda: store.touch(SOURCE, 7, 8),
            lambda: store.move({SOURCE: "/x/b.pdf", "/c.pdf": "/x/c.pdf"}),
            lambda: store.set_metadata({"/x/b.pdf": {"year": 1}, "/x/c.pdf": {"year": 2}}, {"year": "integer"}),
            lambda: store.put_texts("/x/b.pdf", "new", {1: PageText("x")}),
            lambda: store.remove(["/x/b.pdf", "/x/c.pdf"]),
        ):
            before = store.version
            step()
            after = store.version
            assert (after.index_id, after.commits) == (before.index_id, before.commits + 1)
            assert after.token != before.token
        assert all_pages(store) == []

    def test_writes_without_an_effect_are_no_commits(self, store):
        store.append([page_row(1)])
        store.set_metadata({SOURCE: {"year": 2024}}, {"year": "integer"})
        version = store.version
        store.append([])
        store.move({})
        store.remove([])
        store.drop_staged([])
        store.set_metadata({}, {})
        store.tidy()
        assert store.set_metadata({SOURCE: {"year": 2024}}, {"year": "integer"}) == 0
        assert store.set_metadata({SOURCE: {"team": None}}, {}) == 0
        assert store.version == version

    def test_a_write_without_the_writer_lock_is_refused(self, tmp_path):
        with pytest.raises(RuntimeError, match="writer lock"):
            EmbeddedStore.create(tmp_path / "my.index", index_settings()).append([page_row(1)])

    @pytest.mark.parametrize("failing", [".seg", "vectors"])
    def test_a_full_disk_changes_nothing(self, store, monkeypatch, failing):
        store.append([page_row(1)])
        real = os.fsync

        def full(handle):
            if os.readlink(f"/proc/self/fd/{handle}").endswith(failing):
                raise OSError(28, "No space left on device")
            real(handle)

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(DiskFullError, match=r"what was committed to .* is safe"):
            store.append([page_row(2)])
        assert len(live_pages(opened(store))) == 1
        monkeypatch.undo()
        store.append([page_row(3)])
        assert [page for _, page, _ in live_pages(opened(store))] == [1, 3]
        assert check(store.folder) == []

    def test_an_interrupted_commit_leaves_nothing(self, store, monkeypatch):
        def interrupted(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr("anchorfold.storage.document_store.insert_pages", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.append([page_row(1)])
        monkeypatch.undo()
        assert all_pages(opened(store)) == []
        store.append([page_row(2)])
        assert live_pages(opened(store)) == [(SOURCE, 2, "d")]
        store.tidy()
        assert len(vector_files(store)) == 1
        assert check(store.folder) == []

    def test_vector_files_and_their_names_are_synced_before_they_are_registered(self, store, monkeypatch):
        synced = []
        real = os.fsync

        def fsync(handle):
            synced.append(os.readlink(f"/proc/self/fd/{handle}"))
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)
        store.append([page_row(1)])
        folder = store.folder / "vectors"
        assert synced[:2] == [str(folder / "00000001.seg"), str(folder)]

    def test_a_new_database_is_synced_with_its_folder(self, tmp_path, monkeypatch):
        synced = []
        real = os.fsync

        def fsync(handle):
            synced.append(os.readlink(f"/proc/self/fd/{handle}"))
            real(handle)

        monkeypatch.setattr(os, "fsync", fsync)
        EmbeddedStore.create(tmp_path / "new.index", index_settings())
        assert synced[-2:] == [str(tmp_path / "new.index/index.db.part"), str(tmp_path / "new.index")]

    def test_a_folder_that_is_replaced_while_it_is_written_is_not_mixed_up(self, store, tmp_path):
        store.append([page_row(1)])
        other = make_store(tmp_path / "other", [page_row(1, source="/c.pdf")])
        os.replace(other.folder / "index.db", store.folder / "index.db")
        with pytest.raises(StoreError, match="was replaced while it was being written"):
            store.append([page_row(2)])


class TestDocuments:
    def test_promotion_drops_every_other_version(self, store):
        store.append(
            [
                page_row(1, digest="old", text=PageText("old words")),
                page_row(1, digest="older", live=False, text=PageText("older words")),
                page_row(1, digest="new", live=False, text=PageText("new words")),
            ]
        )
        store.promote(SOURCE, "new", 7, 8)
        assert all_pages(store) == [(SOURCE, 1, "new")]
        state = store.documents()[SOURCE]
        assert (state.size, state.modified, state.staged) == (7, 8, {})
        assert [(hit.page, hit.snippet) for hit in store.search_text(SearchRequest(["words"], top_k=9))[0]] == [
            (1, "new words")
        ]
        assert check(store.folder) == []

    def test_staged_versions_are_dropped_alone(self, store):
        store.append([page_row(1, digest="old"), page_row(1, digest="new", live=False)])
        store.append([page_row(1, source="/c.pdf", live=False)])
        store.drop_staged([SOURCE, "/c.pdf"])
        assert all_pages(store) == [(SOURCE, 1, "old")]
        assert set(store.documents()) == {SOURCE}

    def test_touch_and_move_change_what_they_should(self, store):
        store.append([page_row(1), page_row(1, source="/c.pdf")])
        store.touch(SOURCE, 70, 80)
        store.move({SOURCE: "/moved/b.pdf", "/nowhere.pdf": "/x.pdf"})
        states = opened(store).documents()
        assert set(states) == {"/moved/b.pdf", "/c.pdf"}
        assert (states["/moved/b.pdf"].size, states["/moved/b.pdf"].modified) == (70, 80)
        assert states["/c.pdf"].size == 3

    def test_documents_distinguishes_live_and_staged_pages(self, store):
        store.append([page_row(1, digest="old"), page_row(2, digest="old"), page_row(1, digest="new", live=False)])
        store.append([page_row(5, source="/c.pdf"), page_row(1, source="/whole.pdf", pages=1)])
        states = store.documents()
        state = states[SOURCE]
        assert (state.digest, state.stored, state.staged) == ("old", 2, {"new": 1})
        assert store.stored_pages([SOURCE]) == {SOURCE: {"old": {1, 2}, "new": {1}}}
        assert [states[s].complete for s in ("/c.pdf", "/whole.pdf")] == [False, True]

    def test_names_with_quotes(self, store):
        name = 'it\'s; DROP TABLE "documents" -- ü.pdf'
        store.append([page_row(1, source=name), page_row(1)])
        assert opened(store).read_page(name, 1, lambda page: page.source) == name
        store.remove([name])
        assert live_pages(store) == [(SOURCE, 1, "d")]

    def test_ids_are_not_reused(self, store):
        store.append([page_row(1)])
        first = store.read(lambda snapshot: snapshot.live_ids().tolist())
        store.remove([SOURCE])
        store.append([page_row(1, source="/c.pdf")])
        second = store.read(lambda snapshot: snapshot.live_ids().tolist())
        assert max(first) < min(second)
        assert all_pages(opened(store)) == [("/c.pdf", 1, "d")]

    def test_metadata_is_inserted_with_a_new_document_and_kept_by_new_versions(self, store):
        store.set_metadata({}, {"year": "integer"})
        store.append([page_row(1, file_metadata={"title": "T"}, metadata={"year": 3})])
        store.append([page_row(1, digest="new", live=False, file_metadata={"title": "U"})])
        store.promote(SOURCE, "new", 7, 8)
        (version,) = opened(store).read(lambda snapshot: list(snapshot.versions()))
        assert (version.metadata, version.file_metadata) == ({"year": 3}, {"title": "U"})

    def test_true_1_and_1_0_are_three_values(self, store):
        store.append([page_row(1)])
        for value, kind in ((1.0, "float"), (1, "integer"), (True, "boolean")):
            assert store.set_metadata({SOURCE: {"mark": value}}, {"mark": kind}) == 1
            (version,) = opened(store).read(lambda snapshot: list(snapshot.versions()))
            assert version.metadata["mark"] == value
            assert type(version.metadata["mark"]) is type(value)

    def test_a_column_goes_with_its_last_value(self, store):
        store.append([page_row(1), page_row(1, source="/c.pdf")])
        store.set_metadata({SOURCE: {"n": 1}, "/c.pdf": {"n": 2}}, {"n": "integer"})
        assert store.set_metadata({SOURCE: {"n": None}}, {}) == 1
        assert store.columns()["n"] == "integer"
        assert store.set_metadata({"/c.pdf": {"n": None}, "/nowhere.pdf": {"n": 1}}, {}) == 1
        assert "n" not in store.columns()


class TestTexts:
    def test_a_later_text_replaces_the_first(self, store):
        store.append([page_row(1, text=PageText("plain note")), page_row(2, text=PageText("revenue"))])
        store.put_texts(SOURCE, "d", {1: PageText("revenue", ocr=True)}, {1: b"image"})
        assert store.page_text(SOURCE, 1) == PageText("revenue", ocr=True)
        assert store.search_text(SearchRequest(["note"], top_k=9))[0] == []
        assert {hit.page for hit in store.search_text(SearchRequest(["revenue"], top_k=9))[0]} == {1, 2}
        assert store.read_page(SOURCE, 1, lambda page: page.thumbnail) == b"image"
        assert check(store.folder) == []

    def test_texts_of_another_version_are_ignored(self, store):
        store.append([page_row(1, text=PageText("here"))])
        store.put_texts(SOURCE, "other", {1: PageText("there")})
        assert store.page_text(SOURCE, 1) == PageText("here")

    def test_a_staged_version_without_text_is_completed_after_its_promotion(self, store):
        store.append([page_row(1, digest="old", text=PageText("old"))])
        store.append([page_row(1, digest="new", live=False)])
        store.set_text_complete()
        assert store.incomplete_pages() == {}
        store.promote(SOURCE, "new", 7, 8)
        assert store.incomplete_pages() == {SOURCE: ("new", [1])}


def test_an_existing_index_is_not_created_again(tmp_path):
    store = make_store(tmp_path / "my.index", [page_row(1)])
    os.unlink(store.folder / "index.db")
    with pytest.raises(NotAnIndexError, match="contains an index already"):
        EmbeddedStore.create(store.folder, index_settings())
    with pytest.raises(DamagedError, match=r"index\.db is missing"):
        EmbeddedStore.open(store.folder)


def test_settings_are_stored(tmp_path):
    settings = index_settings(bits=4, seed=3, provenance=False, load_options={"bidirectional": True})
    EmbeddedStore.create(tmp_path / "my.index", settings)
    assert EmbeddedStore.open(tmp_path / "my.index").settings == settings


def test_text_can_be_enabled_later_and_open_readers_follow(tmp_path):
    store = make_store(tmp_path / "my.index", [page_row(1, text=PageText("ignored"))])
    reader = EmbeddedStore.open(store.folder)
    assert reader.page_text(SOURCE, 1) is None
    with store.writing():
        store.enable_text(ocr=True)
        store.append([page_row(2, text=PageText("stored"))])
    reader.refresh()
    assert (reader.settings.text, reader.settings.ocr) == (True, True)
    assert reader.page_text(SOURCE, 2) == PageText("stored")
    assert reader.incomplete_pages() == {SOURCE: ("d", [1, 2])}  # without thumbnails, and the first without text
    assert segments.TIER > len(vector_files(store)) == 2
    assert [page.text for page in contents(reader)] == [None, "stored"]
