"""Verification: what is healthy passes, what differs from what was written is found and its documents are named."""

import shutil

import pytest

from anchorfold.errors import AnchorFoldError, DamagedError
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.checking import check
from anchorfold.storage.records import PageText
from anchorfold.storage.repair import repair
from anchorfold.storage.segment import Segment, segment_path
from tests.storage.page_rows import contents, flip_bit, make_store, page_row


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """Three documents of three pages, one vector file each."""
    commits = [
        [
            page_row(p, source=f"/docs/{n}.pdf", pages=3, thumbnail=b"tiny", text=PageText(f"words {n} {p}"))
            for p in range(1, 4)
        ]
        for n in range(3)
    ]
    store = make_store(tmp_path_factory.mktemp("check") / "my.index", *commits, bits=4, text=True)
    with store.writing():
        store.touch("/docs/1.pdf", 5, 6)
        store.set_metadata({"/docs/1.pdf": {"year": 2024}}, {"year": "integer"})
    return store.folder


@pytest.fixture
def index(healthy, tmp_path):
    return shutil.copytree(healthy, tmp_path / "my.index")


def execute(index, statement):
    connection = EmbeddedStore.open(index).database.connect(check=False)
    connection.execute("PRAGMA foreign_keys = off")
    connection.execute(statement)
    connection.close()


def test_a_healthy_index_passes_and_is_not_changed(index):
    before = {path.name: path.read_bytes() for path in index.rglob("*") if path.is_file()}
    assert check(index) == []
    assert {path.name: path.read_bytes() for path in index.rglob("*") if path.suffix in (".db", ".seg")} == {
        name: data for name, data in before.items() if name.endswith((".db", ".seg"))
    }
    assert repair(index) == []


def test_a_missing_vector_file_is_found_and_its_documents_are_named(index):
    segment_path(index, 2).unlink()
    (damage,) = check(index)
    assert (damage.file, damage.documents) == ("vectors/00000002.seg", ("1.pdf",))
    assert "missing" in damage.problem
    with pytest.raises(DamagedError, match=r"00000002\.seg is missing.*anchorfold check"):
        contents(EmbeddedStore.open(index))


@pytest.mark.parametrize("part", [0, 0.5, -1])
def test_a_truncated_file_is_found(index, part):
    for path in (*index.rglob("*.seg"), index / "index.db"):
        data = path.read_bytes()
        path.write_bytes(data[: int(part * len(data)) if part >= 0 else -1])
        assert check(index), path.name
        path.write_bytes(data)
    assert check(index) == []


def test_the_documents_of_damaged_pages_are_named(index):
    path = segment_path(index, 3)
    segment = Segment(path)
    flip_bit(path, 8 * segment._directory["codes"][2])
    (damage,) = check(index)
    assert damage.file == "vectors/00000003.seg"
    assert damage.problem == "the column codes does not match its checksum"
    assert damage.documents == ("2.pdf",)
    with pytest.raises(DamagedError, match=r"00000003\.seg: the vectors of page 1 do not match"):
        contents(EmbeddedStore.open(index))


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE documents SET name = 'x' WHERE id = 2", "row 2 of documents does not match its checksum"),
        ("UPDATE texts SET text = 'other' WHERE page_id & 0xff = 2", "of texts does not match its checksum"),
        ("UPDATE page_payloads SET problem = 'p'", "of page_payloads does not match its checksum"),
        ("DELETE FROM versions WHERE id = 2", "the live versions do not match the checksum"),
        ("DELETE FROM pages WHERE id & 0xff = 2", "a row of page_payloads belongs to nothing"),
        ("INSERT INTO pages (id, vectors, full_vectors) VALUES (17, 1, 1)", "1 rows of pages belong to nothing"),
        ("INSERT INTO documents VALUES (9, '/x', 'x', 'x', '{}', 0)", "1 rows of documents belong to nothing"),
        ("DROP INDEX live_version", "its schema was changed"),
        ("INSERT INTO text_index (text_index) VALUES ('delete-all')", "the full-text index does not match the texts"),
    ],
)
def test_changes_by_others_are_found(index, statement, problem):
    execute(index, statement)
    damages = check(index)
    assert {damage.file for damage in damages} == {"index.db"}
    assert problem in " ".join(damage.problem for damage in damages)
    assert repair(index)
    assert check(index) == []


def test_pages_without_a_vector_file_are_found(index):
    execute(index, "INSERT INTO pages (id, vectors, full_vectors) VALUES ((2 << 24) + 9, 1, 1)")
    (damage,) = check(index)
    assert (damage.problem, damage.documents) == ("1 pages are in no vector file", ("1.pdf",))
    repair(index)
    assert check(index) == []


def test_pages_in_two_vector_files_are_found(index):
    store = EmbeddedStore.open(index)
    with store.writing(), store.transaction() as snapshot:

        def copy(path, _):
            shutil.copyfile(segment_path(index, 1), path)
            return Segment(path).entry

        store.register(snapshot, copy)
    (damage,) = check(index)
    assert "contains pages that are also stored in another file" in damage.problem
    expected = contents(store)
    repair(index)
    assert check(index) == []
    assert contents(EmbeddedStore.open(index)) == sorted(set(expected), key=lambda page: page[:3])


def test_a_vector_file_of_another_index_is_found(index, tmp_path):
    other = make_store(tmp_path / "other.index", [page_row(p, source="/docs/0.pdf", pages=3) for p in (1, 2, 3)])
    shutil.copyfile(segment_path(other.folder, 1), segment_path(index, 1))
    (damage,) = check(index)
    assert "it is not the file that the index registered" in damage.problem


@pytest.mark.parametrize("work", [check, repair])
def test_a_folder_without_an_index_is_an_error(tmp_path, work):
    with pytest.raises(AnchorFoldError, match="nowhere does not exist"):
        work(tmp_path / "nowhere")
    with pytest.raises(AnchorFoldError, match="is not an AnchorFold index"):
        work(tmp_path)
    assert list(tmp_path.iterdir()) == []
