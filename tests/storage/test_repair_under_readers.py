"""Connections of other processes that are opened between any two steps of a repair and used after it."""

import os
import sqlite3
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from anchorfold.errors import DamagedError, NotAnIndexError
from anchorfold.retrieval.embedded_store import EmbeddedStore, check_index
from anchorfold.storage import database
from anchorfold.storage.database import Database
from benchmarks.fault_injection import make_template
from benchmarks.small_index import add_document, observe
from tests.storage.test_interleaving import Steps


def contents(connection: sqlite3.Connection) -> list[object]:
    """All documents and the newest commit."""
    queries = ("SELECT path FROM documents ORDER BY path", "SELECT token FROM index_info", "PRAGMA quick_check")
    return [connection.execute(query).fetchall() for query in queries]


class Holder:
    """A process with an open connection, with `snapshot` in a read transaction."""

    def __init__(self, folder: Path, snapshot: bool) -> None:
        incoming, outgoing = os.pipe()
        waiting, self.release = os.pipe()
        self.process = os.fork()
        if not self.process:
            code = 1
            try:
                self._hold(folder, snapshot, outgoing, waiting)
                code = 0
            finally:
                os._exit(code)
        os.close(outgoing)
        os.read(incoming, 1)
        os.close(incoming)
        os.close(waiting)

    def _hold(self, folder: Path, snapshot: bool, outgoing: int, waiting: int) -> None:
        with suppress(DamagedError, NotAnIndexError), closing(Database(folder).connect()) as connection:
            if snapshot:
                connection.execute("BEGIN")
                before = contents(connection)
            os.write(outgoing, b".")
            os.close(outgoing)
            os.read(waiting, 1)
            if not snapshot:
                with closing(Database(folder).connect()) as fresh:
                    before = contents(fresh)
            assert contents(connection) == before

    def end(self) -> int:
        with suppress(BrokenPipeError):
            os.write(self.release, b".")
        os.close(self.release)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


def in_child(function) -> None:
    process = os.fork()
    if not process:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0


@contextmanager
def ended(holders: list[Holder]):
    try:
        yield
    finally:
        codes = [holder.end() for holder in holders]
    assert not any(codes)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["repair database", "repair lost database", "header"])
def test_connections_opened_during_a_repair_stay_usable(tmp_path, monkeypatch, damage):
    folder = tmp_path / "my.index"
    make_template("repair database" if damage == "header" else damage, folder)
    if damage == "header":
        with open(folder / "index.db", "r+b") as file:
            file.write(b"x")
    monkeypatch.setattr(database, "BUSY_SECONDS", 1.0)
    holders: list[Holder] = []

    def read() -> None:
        with suppress(DamagedError):
            observe(EmbeddedStore.open(folder))

    def at(number: int, name: str) -> None:
        holders.extend([Holder(folder, False), Holder(folder, True)])
        in_child(read)

    with ended(holders):
        with monkeypatch.context() as patch:
            steps = Steps(patch)
            steps.at = at
            check_index(folder, fix=True)
            steps.at = None
        assert steps.number > 5
        in_child(lambda: observe(EmbeddedStore.open(folder)))
        store = EmbeddedStore.open(folder)
        with store.writing():
            add_document(store, "written")
        expected = observe(store)
    assert check_index(folder) == []
    assert observe(EmbeddedStore.open(folder)) == expected
