"""Connections to the database: which files are opened, which are refused, and in which journal mode."""

import os
import shutil
import sqlite3
from dataclasses import asdict

import pytest

from anchorfold.errors import AnchorFoldError, DamagedError, MismatchError, NotAnIndexError, StoreError
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage import database as module
from anchorfold.storage.database import (
    Database,
    file_system,
    is_index,
    journal_mode,
    make_folder,
    require_target,
)
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.schema import row_checksum
from tests.storage.page_rows import live_pages, make_store, page_row


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path / "my.index", [page_row(1)])


def pragma(store, name):
    return store.read(lambda snapshot: snapshot.connection.execute(f"PRAGMA {name}").fetchone()[0])


class TestOpening:
    def test_folders_that_are_no_index(self, tmp_path):
        with pytest.raises(NotAnIndexError, match="nowhere does not exist: create it with `anchorfold index"):
            EmbeddedStore.open(tmp_path / "nowhere")
        (tmp_path / "interrupted/vectors").mkdir(parents=True)
        (tmp_path / "file").write_text("x")
        for name in (".", "interrupted", "file"):
            with pytest.raises(NotAnIndexError, match=r"is not an AnchorFold index\."):
                EmbeddedStore.open(tmp_path / name)
            assert not is_index(tmp_path / name)

    def test_another_sqlite_database_is_no_index(self, tmp_path):
        with sqlite3.connect(tmp_path / "index.db") as connection:
            connection.execute("CREATE TABLE t (x)")
        connection.close()
        with pytest.raises(NotAnIndexError, match=r"is not an AnchorFold index: its index\.db is another database"):
            EmbeddedStore.open(tmp_path)

    def test_an_index_of_version_0_2_is_refused_with_advice(self, tmp_path):
        (tmp_path / "logs").mkdir()
        (tmp_path / "head").write_text("1")
        with pytest.raises(MismatchError, match=r"anchorfold 0\.2.*index the documents into a new folder"):
            EmbeddedStore.open(tmp_path)

    def test_a_newer_schema_is_refused(self, store):
        with sqlite3.connect(store.database.path) as connection:
            connection.execute("CREATE TABLE later (x)")
            connection.execute("PRAGMA user_version = 9")
        connection.close()
        with pytest.raises(MismatchError, match=r"newer version of anchorfold \(schema 9; .*upgrade anchorfold"):
            EmbeddedStore.open(store.folder)

    def test_settings_of_a_newer_version_are_no_damage(self, store):
        with pytest.raises(MismatchError, match=r"created by a newer version of anchorfold \(unknown settings: colour"):
            IndexSettings.from_dict({**asdict(store.settings), "colour": "blue"})

    @pytest.mark.parametrize("wrong", [{"dim": "many"}, {"model": None}, {"options": [1]}])
    def test_settings_of_a_wrong_type_are_damage(self, store, wrong):
        with pytest.raises(DamagedError, match=f"settings of the index are damaged: '{next(iter(wrong))}'"):
            IndexSettings.from_dict({**asdict(store.settings), **wrong})

    def test_every_index_can_be_opened_with_other_tools(self, store):
        assert pragma(store, "application_id") == 0x41464C44
        with sqlite3.connect(f"file:{store.database.path}?mode=ro", uri=True) as connection:
            rows = connection.execute("SELECT document, pages FROM live_documents").fetchall()
        connection.close()
        assert rows == [("b.pdf", 9)]

    def test_a_reader_cannot_write(self, store):
        with pytest.raises(StoreError, match="permission denied"), store.database.reading() as connection:
            connection.execute("DELETE FROM pages")

    def test_a_read_only_folder_is_read(self, store, monkeypatch):
        connect, modes = module._connect, []

        def read_only(path, mode):
            modes.append(mode)
            return connect(path, "ro" if mode == "rw" else mode) if "immutable" in mode else refuse(path)

        def refuse(path):
            # Root may write everywhere: a folder that does not exist fails in the same way.
            return connect(path / "nowhere", "rw")

        monkeypatch.setattr(module, "_connect", read_only)
        monkeypatch.setattr(os, "access", lambda *_: False)
        assert len(live_pages(store)) == 1
        assert modes == ["rw", "ro&immutable=1"]
        (store.folder / "index.db-wal").write_bytes(b"not yet in the database")
        with pytest.raises(StoreError, match="is read-only and was not closed after its last change"):
            live_pages(store)


class TestCreating:
    def test_a_folder_with_other_files_is_refused(self, tmp_path):
        (tmp_path / "thesis.doc").write_text("precious")
        for work in (make_folder, require_target):
            with pytest.raises(NotAnIndexError, match=r"not empty \(it contains thesis\.doc\): choose another folder"):
                work(tmp_path)
            with pytest.raises(NotAnIndexError, match="is a file: choose a folder for the index"):
                work(tmp_path / "thesis.doc")

    def test_what_an_interrupted_creation_left_is_ignored(self, tmp_path, monkeypatch):
        def interrupted(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make_store(tmp_path / "my.index")
        monkeypatch.undo()
        (tmp_path / "my.index/index.db.part").write_bytes(b"half")
        make_folder(tmp_path / "my.index")
        assert not is_index(tmp_path / "my.index")
        store = make_store(tmp_path / "my.index", [page_row(1)])
        assert is_index(store.folder)
        assert not (store.folder / "index.db.part").exists()
        require_target(store.folder)

    def test_a_folder_that_cannot_be_made_is_an_error(self, tmp_path):
        (tmp_path / "file").write_text("x")
        with pytest.raises(AnchorFoldError, match=r"cannot be (created|read): not a directory"):
            make_folder(tmp_path / "file" / "my.index")


class TestTransactions:
    def test_a_failed_transaction_is_rolled_back(self, store):
        version = store.version

        def fail():
            with store.transaction() as snapshot:
                snapshot.connection.execute("DELETE FROM pages")
                raise ZeroDivisionError

        with store.writing(), pytest.raises(ZeroDivisionError):
            fail()
        assert store.version == version
        assert len(live_pages(store)) == 1

    def test_a_reader_sees_the_commit_that_it_began_with(self, store):
        with store.database.reading() as connection:
            before = connection.execute("SELECT count(*) FROM pages").fetchone()
            with store.writing():
                store.append([page_row(2)])
            assert connection.execute("SELECT count(*) FROM pages").fetchone() == before
        assert len(live_pages(store)) == 2

    def test_a_restored_backup_is_noticed_by_open_stores(self, store, tmp_path):
        backup = shutil.copytree(store.folder, tmp_path / "backup")
        before = store.version
        with store.writing():
            store.append([page_row(2)])
        assert len(live_pages(store)) == 2
        shutil.rmtree(store.folder)
        shutil.copytree(backup, store.folder)
        assert store.version == before
        assert len(live_pages(store)) == 1
        with store.writing():
            store.append([page_row(3)])  # commits as many times as before, and is another version
        assert [page for _, page, _ in live_pages(store)] == [1, 3]


class TestJournal:
    @pytest.mark.parametrize("mode", ["wal", "delete"])
    def test_the_journal_can_be_chosen(self, tmp_path, monkeypatch, mode):
        monkeypatch.setenv("ANCHORFOLD_JOURNAL", mode)
        store = make_store(tmp_path / "my.index", [page_row(1)])
        assert pragma(store, "journal_mode") == mode
        assert len(live_pages(store)) == 1

    def test_an_index_that_moved_to_a_network_is_switched_by_the_next_writer(self, store, monkeypatch):
        assert pragma(store, "journal_mode") == "wal"
        monkeypatch.setattr(module, "file_system", lambda _: "nfs4")
        assert journal_mode(store.folder) == "delete"
        with store.writing():
            store.append([page_row(2)])
        assert pragma(store, "journal_mode") == "delete"

    def test_the_file_system_of_this_machine(self, tmp_path):
        assert isinstance(file_system(os.stat(tmp_path).st_dev), str)
        assert file_system(os.makedev(250, 250)) == ""


def test_values_that_print_alike_have_checksums_of_their_own():
    assert len({row_checksum("a", "b"), row_checksum("ab"), row_checksum("b", "a"), row_checksum("a", None)}) == 4


def test_an_empty_or_unreadable_database_is_damage(store):
    store.database.path.write_bytes(b"")
    with pytest.raises(DamagedError, match=r"index\.db is empty"):
        Database(store.folder).connect()
    store.database.path.write_bytes(b"x" * 10_000)
    with pytest.raises(DamagedError, match=r"index\.db: file is not a database"):
        Database(store.folder).connect()
