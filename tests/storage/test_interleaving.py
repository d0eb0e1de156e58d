"""Deterministic interleavings: between every two steps of a write, another long-lived object reads, and later writes.

Each object refreshes at one step of the first operation and does nothing until it performs the second operation: a
cached state that is stale by then must not lose anything. ANCHORFOLD_ALL_STEPS=1 lets an object write for every step
instead of every sixth one.
"""

import os
import shutil
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from anchorfold.errors import DamagedError, LockedError
from anchorfold.retrieval.embedded_store import EmbeddedStore, check_index
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.records import PageText
from benchmarks.fault_injection import make_template
from benchmarks.small_index import QUERIES, add_document, digest, make_index, observe, source

STRIDE = 1 if os.environ.get("ANCHORFOLD_ALL_STEPS") else 6
WORDS = (
    "BEGIN IMMEDIATE",
    "COMMIT",
    "ROLLBACK",
    "INSERT INTO vector_files",
    "UPDATE index_info",
    "DELETE FROM versions",
)


class Steps:
    """Calls `at(number, name)` between the steps of whatever runs while it is active."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.at: Callable[[int, str], None] | None = None
        self.number = 0
        steps = self

        class Connection(sqlite3.Connection):
            def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
                if sql.startswith(WORDS):
                    steps.reached(f"before {sql[:30]}")
                cursor = super().execute(sql, *arguments)
                if sql == "COMMIT":
                    steps.reached("after COMMIT")
                return cursor

            def backup(self, target: sqlite3.Connection, **options: Any) -> None:
                steps.reached("before backup")
                super().backup(target, **options)
                steps.reached("after backup")

        connect = sqlite3.connect
        patch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=Connection))
        for module, name in ((os, "fsync"), (os, "unlink"), (os, "replace"), (os, "rename"), (shutil, "copyfile")):
            patch.setattr(module, name, self._wrapped(name, getattr(module, name)))

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.reached(f"before {name}")
            result = function(*arguments, **options)
            self.reached(f"after {name}")
            return result

        return call

    def reached(self, name: str) -> None:
        at, self.at = self.at, None  # what the other object does is not interrupted
        if at is not None:
            self.number += 1
            at(self.number, name)
            self.at = at


def look(store: EmbeddedStore) -> Any:
    """What a reader sees: documents, a visual and a text search."""
    try:
        store.refresh()
        documents = {path: state.digest for path, state in store.documents().items() if state.digest}
        visual = [
            [(h.source, h.page, round(h.score, 3)) for h in hits]
            for hits in store.search_visual(SearchRequest(vectors=QUERIES, top_k=50))
        ]
        text = sorted((hit.source, hit.page) for hit in store.search_text(SearchRequest(["common"], top_k=100))[0])
    except DamagedError:
        return "damaged"
    return documents, visual, text


def append(store: EmbeddedStore, number: int) -> None:
    add_document(store, f"new{number}")
    store.finish()


def replace(store: EmbeddedStore, number: int) -> None:
    add_document(store, "alpha", 10 + number)
    store.finish()


def remove(store: EmbeddedStore, number: int) -> None:
    store.remove([source("bravo")])
    store.finish()


def set_metadata(store: EmbeddedStore, number: int) -> None:
    store.set_metadata({source("charlie"): {"year": 3000 + number}}, {"year": "integer"})


def put_texts(store: EmbeddedStore, number: int) -> None:
    store.enable_text(False)
    store.put_texts(source("delta"), digest(1), {2: PageText(f"common later{number}")})


def merge(store: EmbeddedStore, number: int) -> None:
    store._merge(sorted(store.read(lambda snapshot: snapshot.files)))
    store.finish()


def nothing(store: EmbeddedStore, number: int) -> None:
    store.finish()


def repair(store: EmbeddedStore, number: int) -> None:
    check_index(store.folder, fix=True)


FIRST = {
    "append": append, "promote": replace, "remove": remove, "set_metadata": set_metadata, "put_texts": put_texts,
    "merge": merge, "nothing": nothing, "repair": repair, "repair database": repair, "repair vectors": repair,
    "repair lost database": repair,
}  # fmt: skip
SECOND = {name: function for name, function in FIRST.items() if not name.startswith("repair ")}


def perform(store: EmbeddedStore, operation: Callable[[EmbeddedStore, int], None], number: int) -> None:
    if operation is repair:
        repair(store, number)
    else:
        with store.writing(wait=0):
            operation(store, number)


def require_effect(store: EmbeddedStore, second: str, number: int, before: dict[str, str]) -> dict[str, str]:
    """Assert that an acknowledged operation is visible and that no document is lost; returns the documents."""
    now = {path: state.digest for path, state in store.documents().items() if state.digest}
    expected = dict(before)
    match second:
        case "append":
            expected[source(f"new{number}")] = digest(1)
            assert [hit.page for hit in store.search_text(SearchRequest([f"new{number}r1p2"], top_k=5))[0]] == [2]
        case "promote":
            expected[source("alpha")] = digest(10 + number)
            assert store.search_text(SearchRequest(["alphar1p1"], top_k=5))[0] == []
        case "remove":
            expected.pop(source("bravo"), None)
        case "set_metadata":
            assert store.read_page(source("charlie"), 1, lambda page: page.metadata["year"]) == 3000 + number
        case "put_texts":
            assert [hit.page for hit in store.search_text(SearchRequest([f"later{number}"], top_k=5))[0]] == [2]
    assert now == expected
    return now


@pytest.mark.slow
@pytest.mark.parametrize("second", list(SECOND))
@pytest.mark.parametrize("first", list(FIRST))
def test_an_object_that_read_between_two_steps_writes_later_without_loss(tmp_path, monkeypatch, first, second):
    folder = tmp_path / "my.index"
    if first.startswith("repair "):
        make_template(first, folder)
    else:
        make_index(folder)
    rehearsal = tmp_path / "rehearsal.index"
    shutil.copytree(folder, rehearsal)
    intact = first != "repair lost database"
    writer = EmbeddedStore.open(folder) if intact else Recreated(folder)
    before = look(writer) if intact else "damaged"
    perform(EmbeddedStore.open(rehearsal) if intact else Recreated(rehearsal), FIRST[first], 0)
    after = look(EmbeddedStore.open(rehearsal))
    watcher = EmbeddedStore.open(folder) if intact else None  # reads at every step
    readers: list[EmbeddedStore] = []

    def read(number: int, name: str) -> None:
        if watcher is not None:
            assert look(watcher) in (before, after), f"step {number}, {name}"
        if number % STRIDE != list(SECOND).index(second) % STRIDE:
            return
        try:
            reader = EmbeddedStore.open(folder)
        except DamagedError:
            assert first.startswith("repair"), name
            return
        assert look(reader) in (before, after), f"step {number}, {name}"
        with pytest.raises(LockedError), reader.writing(wait=0):
            pass
        readers.append(reader)

    with monkeypatch.context() as patch:
        steps = Steps(patch)
        steps.at = read
        perform(writer, FIRST[first], 0)
        steps.at = None
    assert steps.number > 5
    if intact:
        assert look(writer) == after
    fresh = EmbeddedStore.open(folder)
    assert look(fresh) == after
    assert check_index(folder) == []
    documents = {path: state.digest for path, state in fresh.documents().items() if state.digest}
    for number, reader in enumerate(readers or [watcher or fresh], 1):
        perform(reader, SECOND[second], number)
        documents = require_effect(EmbeddedStore.open(folder), second, number, documents)
    assert check_index(folder) == []
    expected = observe(EmbeddedStore.open(folder))
    for reader in (*readers[:1], *readers[-1:], fresh, *([writer] if intact else [])):
        assert observe(reader) == expected


class Recreated(EmbeddedStore):
    """Represents an index that cannot be opened until it is repaired."""

    def __init__(self, folder) -> None:
        self.folder = folder
