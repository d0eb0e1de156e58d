"""Repair: intact pages are kept, the others are reported and can be added again."""

import datetime
import os
import shutil
import sqlite3
from typing import Any

import pytest

from anchorfold.errors import DamagedError, MismatchError
from anchorfold.retrieval.embedded_store import EmbeddedStore, check_index
from anchorfold.storage.checking import check
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.records import PageText
from anchorfold.storage.repair import repair
from anchorfold.storage.schema import SCHEMA_VERSION
from anchorfold.storage.segment import CHECKSUMS, NUMBERS, Segment, segment_path
from tests.storage.page_rows import all_pages, contents, flip_bit, live_pages, make_store, page_row


def rows_of(number):
    return [
        page_row(p, source=f"/docs/{number}.pdf", pages=3, thumbnail=b"tiny", text=PageText(f"words of {number} {p}"))
        for p in range(1, 4)
    ]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Three documents of three pages, one vector file each; one document has metadata."""
    store = make_store(
        tmp_path_factory.mktemp("repair") / "my.index", *(rows_of(n) for n in range(3)), bits=4, text=True
    )
    with store.writing():
        store.set_metadata({"/docs/1.pdf": {"year": 2024}}, {"year": "integer"})
    return store.folder


@pytest.fixture
def index(healthy, tmp_path):
    return shutil.copytree(healthy, tmp_path / "my.index")


def year(store):
    return {v.name: v.metadata.get("year") for v in store.read(lambda snapshot: list(snapshot.versions()))}


@pytest.mark.parametrize("column", ["vectors", "full_vectors"])
def test_wrong_vector_counts_in_the_database_are_repaired_from_the_files(index, column):
    expected = contents(EmbeddedStore.open(index))
    with sqlite3.connect(index / "index.db") as connection:
        connection.execute(f"UPDATE pages SET {column} = {column} + 4 WHERE id = (SELECT max(id) FROM pages)")
    connection.close()
    (damage,) = check(index)
    assert (damage.file, damage.documents) == ("index.db", ("2.pdf",))
    repair(index)
    assert check(index) == []
    assert contents(EmbeddedStore.open(index)) == expected


class TestVectorFiles:
    @pytest.mark.parametrize("number", [1, 2, 3])
    def test_a_damaged_page_is_dropped_and_can_be_added_again(self, index, number):
        store = EmbeddedStore.open(index)
        expected = contents(store)
        path = segment_path(index, number)
        segment = Segment(path)
        flip_bit(path, 8 * (segment._directory["provenance"][2] + int(segment.blob_starts[1])))
        (damage,) = repair(index)
        assert damage.documents == (f"{number - 1}.pdf",)
        assert damage.repair == "2 of 3 pages were kept"
        assert check(index) == []
        assert len(list((index / "lost").glob(f"*-{path.name}"))) == 1
        left = contents(store)
        assert len(left) == 8
        assert set(left) < set(expected)
        (source,) = [source for source, state in store.documents().items() if not state.complete]
        missing = {1, 2, 3} - store.stored_pages([source])[source]["d"]
        with store.writing():
            store.append([row for row in rows_of(number - 1) if row.page in missing])
        assert contents(store) == expected
        assert {hit.document for hit in store.search_text(SearchRequest([f"{number - 1}"], top_k=9))[0]} >= {
            f"{number - 1}.pdf"
        }
        assert check(index) == []

    @pytest.mark.parametrize(("column", "left"), [("codes", 5), ("provenance", 5)])
    def test_intact_pages_are_kept(self, tmp_path, column, left):
        rows = [page_row(p, source=f"/{p % 2}.pdf", pages=3, thumbnail=b"tiny") for p in range(1, 7)]
        store = make_store(tmp_path / "my.index", rows, bits=32)
        expected = contents(store)
        path = segment_path(store.folder, 1)
        flip_bit(path, 8 * Segment(path)._directory[column][2])
        (damage,) = check_index(store.folder, fix=True)
        assert check(store.folder) == []
        after = contents(EmbeddedStore.open(store.folder))
        assert set(after) < set(expected)
        assert len(after) == left
        lost = {os.path.basename(page.source) for page in expected if page not in after}
        assert set(damage.documents) == lost

    @pytest.mark.parametrize("place", [*NUMBERS, *CHECKSUMS, "provenance.length", "documents", "footer"])
    def test_shared_columns_are_stored_twice(self, index, place):
        expected = contents(EmbeddedStore.open(index))
        path = segment_path(index, 2)
        position = path.stat().st_size - 40 if place == "footer" else Segment(path)._directory[place][2]
        flip_bit(path, 8 * position)
        assert contents(EmbeddedStore.open(index)) == expected
        (damage,) = check(index)
        assert damage.file == "vectors/00000002.seg"
        (damage,) = repair(index)
        assert damage.repair == "3 of 3 pages were kept"
        assert check(index) == []
        assert contents(EmbeddedStore.open(index)) == expected

    def test_a_missing_vector_file_costs_its_pages_alone(self, index):
        segment_path(index, 2).unlink()
        (damage,) = repair(index)
        assert (damage.file, damage.repair) == ("vectors/00000002.seg", "0 of 3 pages were kept")
        store = EmbeddedStore.open(index)
        assert {source for source, _, _ in live_pages(store)} == {"/docs/0.pdf", "/docs/2.pdf"}
        assert year(store)["1.pdf"] == 2024  # the document is known, and read again
        with store.writing():
            store.append(rows_of(1))
        assert len(live_pages(store)) == 9
        assert check(index) == []

    def test_staged_pages_are_kept(self, index):
        store = EmbeddedStore.open(index)
        with store.writing():
            store.append([page_row(1, source="/docs/0.pdf", digest="new", live=False)])
        segment_path(index, 3).unlink()
        repair(index)
        assert ("/docs/0.pdf", 1, "new") in all_pages(store)


class TestDatabase:
    @pytest.mark.parametrize("damage", ["missing", "empty", "nonsense"])
    def test_a_lost_database_is_rebuilt_from_the_vector_files(self, index, damage):
        expected = contents(EmbeddedStore.open(index))
        path = index / "index.db"
        path.unlink()
        if damage != "missing":
            path.write_bytes(b"" if damage == "empty" else b"nonsense" * 5000)
        with pytest.raises(DamagedError, match=r"is damaged \(index\.db.*anchorfold check"):
            EmbeddedStore.open(index)
        damages = repair(index)
        assert ("documents were restored from vector files without their metadata", ("0.pdf", "1.pdf", "2.pdf")) in [
            (d.problem, d.documents) for d in damages
        ]
        assert check(index) == []
        store = EmbeddedStore.open(index)
        vectors = [(page.source, page.page, page.digest, page.vectors, page.provenance) for page in expected]
        assert [(p.source, p.page, p.digest, p.vectors, p.provenance) for p in contents(store)] == vectors
        assert year(store) == {"0.pdf": None, "1.pdf": None, "2.pdf": None}
        assert {s: pages for s, (_, pages) in store.incomplete_pages().items()} == {
            f"/docs/{n}.pdf": [1, 2, 3] for n in range(3)
        }

    def test_moved_documents_keep_their_paths(self, index):
        store = EmbeddedStore.open(index)
        with store.writing():
            store.move({"/docs/1.pdf": "/new/1.pdf"})
            store.tidy()
        (index / "index.db").unlink()
        repair(index)
        assert check(index) == []
        assert {source for source, _, _ in live_pages(store)} == {"/docs/0.pdf", "/new/1.pdf", "/docs/2.pdf"}
        (index / "index.db").unlink()  # the file that records the path is kept
        repair(index)
        assert "/new/1.pdf" in store.documents()

    @pytest.mark.parametrize("byte", [16, 56, 400, 3000])
    def test_damage_of_the_header_and_the_schema_costs_nothing(self, index, byte):
        expected = contents(EmbeddedStore.open(index))
        flip_bit(index / "index.db", 8 * byte)
        if check(index):
            repair(index)
        assert check(index) == []
        store = EmbeddedStore.open(index)
        assert contents(store) == expected
        assert year(store)["1.pdf"] == 2024

    def test_intact_rows_of_a_damaged_database_are_kept(self, index):
        with sqlite3.connect(index / "index.db") as connection:
            connection.execute("UPDATE documents SET metadata = '{\"year\": 2025}' WHERE id = 2")
            connection.execute("UPDATE texts SET text = 'other' WHERE page_id = (3 << 24) + 1")
        connection.close()
        damages = repair(index)
        restored = [d for d in damages if d.problem.startswith("documents were restored")]
        assert [d.documents for d in restored] == [("1.pdf",)]
        assert check(index) == []
        store = EmbeddedStore.open(index)
        assert len(live_pages(store)) == 9
        assert year(store) == {"0.pdf": None, "1.pdf": None, "2.pdf": None}
        assert store.incomplete_pages() == {"/docs/2.pdf": ("d", [1])}
        assert [hit.page for hit in store.search_text(SearchRequest(["words 0 2"], top_k=1))[0]] == [2]
        with store.writing():
            assert store.set_metadata({"/docs/1.pdf": {"year": 2024}}, {"year": "integer"}) == 1

    def test_lost_types_of_metadata_are_inferred_from_the_values(self, index):
        store = EmbeddedStore.open(index)
        values: dict[str, Any] = {
            "rate": 0.5,
            "signed": True,
            "due": "2024-01-31",
            "team": "sales",
            "title": "2024-01-31",
        }
        types = {"rate": "float", "signed": "boolean", "due": "date", "team": "text", "title": "text"}
        with store.writing():
            store.set_metadata({"/docs/1.pdf": values}, types)
        with sqlite3.connect(index / "index.db") as connection:
            connection.execute("UPDATE metadata_columns SET type = 'x' WHERE name = 'rate'")
        connection.close()
        repair(index)
        assert check(index) == []
        assert store.columns().items() >= {**types, "year": "integer"}.items()
        (hit,) = store.search_text(
            SearchRequest(["words 1 1"], top_k=1, where="year = 2024 and due > '2023-01-01' and page = 1")
        )[0]
        assert hit.metadata["due"] == datetime.date(2024, 1, 31)

    def test_removed_documents_stay_removed_if_the_list_of_documents_is_intact(self, index):
        store = EmbeddedStore.open(index)
        with store.writing():
            store.remove(["/docs/0.pdf"])  # its pages are still in a vector file
        with sqlite3.connect(index / "index.db") as connection:
            connection.execute("UPDATE texts SET text = 'other' WHERE page_id = (3 << 24) + 1")
        connection.close()
        repair(index)
        assert {source for source, _, _ in live_pages(store)} == {"/docs/1.pdf", "/docs/2.pdf"}
        assert check(index) == []

    def test_a_damaged_full_text_index_is_rebuilt(self, index):
        with sqlite3.connect(index / "index.db") as connection:
            connection.execute("INSERT INTO text_index (text_index) VALUES ('delete-all')")
        connection.close()
        repair(index)
        store = EmbeddedStore.open(index)
        assert check(index) == []
        assert len(store.search_text(SearchRequest(["words"], top_k=20))[0]) == 9
        assert year(store)["1.pdf"] == 2024

    def test_open_stores_continue_after_a_repair(self, index):
        store = EmbeddedStore.open(index)
        before = store.version
        (index / "index.db").unlink()
        repair(index)
        after = store.version
        assert (after.index_id, len(live_pages(store))) == (before.index_id, 9)
        assert after.token != before.token
        with store.writing():
            store.append([page_row(1, source="/new.pdf")])
        assert len(live_pages(store)) == 10
        assert check(index) == []

    def test_nothing_is_changed_if_nothing_can_be_read(self, index):
        for path in index.rglob("*.seg"):
            path.write_bytes(b"nonsense" * 50)
        (index / "index.db").write_bytes(b"nonsense" * 5000)
        before = {path: path.read_bytes() for path in index.rglob("*") if path.suffix in (".db", ".seg")}
        with pytest.raises(DamagedError, match="neither the database nor a vector file can be read; nothing was"):
            repair(index)
        assert {path: path.read_bytes() for path in index.rglob("*") if path.suffix in (".db", ".seg")} == before

    @pytest.mark.parametrize(("number", "age"), [(99, "a newer"), (SCHEMA_VERSION - 1, "an older")])
    def test_an_index_of_another_version_is_left_alone(self, index, number, age):
        with sqlite3.connect(index / "index.db") as connection:
            connection.execute("CREATE TABLE other (x)")
            connection.execute(f"PRAGMA user_version = {number}")
        connection.close()
        before = {path: path.read_bytes() for path in index.rglob("*.*") if path.suffix in (".db", ".seg")}
        for function in (check, repair, EmbeddedStore.open):
            with pytest.raises(MismatchError, match=f"was created by {age} version of anchorfold"):
                function(index)
        assert {path: path.read_bytes() for path in index.rglob("*.*") if path.suffix in (".db", ".seg")} == before
        assert not (index / "lost").exists()
