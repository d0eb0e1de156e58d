"""The ten findings of the fault injection of the former store (0.2, commit 5ca6368), one or more tests each.

At least one test of each finding was run on the former code and fails there for the reason that the finding states.
"""

import multiprocessing
import os
import resource
import shutil
import sqlite3
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from anchorfold import AnchorFold, Index
from anchorfold.errors import AnchorFoldError, DiskFullError, StoreError
from anchorfold.ingestion.ingest import Ingest
from anchorfold.retrieval import candidate_files
from anchorfold.retrieval.embedded_store import EmbeddedStore, check_index
from tests.number_reader import NumberReader, number_vectors, write_pdf
from tests.text_pages import write_text_pdf

forks = multiprocessing.get_context("fork")
SECONDS = 60


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A folder with documents and an index of them; one document was removed from the index."""
    folder = tmp_path_factory.mktemp("findings") / "world"
    for name, pages in {
        "a.pdf": [(101, "apple revenue"), (102, "apple costs")],
        "b.pdf": [(111, "banana revenue")],
        "c.pdf": [(121, "cherry revenue")],
    }.items():
        write_text_pdf(folder / "docs" / name, pages)
    write_text_pdf(folder / "removed" / "r.pdf", [(131, "raspberry revenue")])
    index = Index.create(folder / "my.index", NumberReader(), AnchorFold(ratio=0.5))
    index.add([folder / "docs", folder / "removed"])
    index.remove("*r.pdf")
    return Path(shutil.copytree(folder, folder.with_name("template")))


@pytest.fixture
def world(prepared):
    """A copy at the path where the documents were indexed."""
    folder = prepared.with_name("world")
    shutil.rmtree(folder)
    return Path(shutil.copytree(prepared, folder))


def opened(world: Path) -> Index:
    return Index.open(world / "my.index", NumberReader())


def best(index: Index, number: int) -> tuple[str, int]:
    hit = index.search(f"page {number}", top_k=1)[0]
    return os.path.basename(hit.document), hit.page


def texts(index: Index, query: str) -> list[str]:
    return sorted({os.path.basename(hit.document) for hit in index.search(query, mode="text")})


def require_intact(world: Path) -> None:
    index = opened(world)
    assert [best(index, n) for n in (101, 102, 111, 121)] == [("a.pdf", 1), ("a.pdf", 2), ("b.pdf", 1), ("c.pdf", 1)]
    assert texts(index, "revenue") == ["a.pdf", "b.pdf", "c.pdf"]
    assert check_index(world / "my.index") == []


# 1. A long-lived object writes after maintenance by another one.


def damage_metadata(index: Path) -> None:
    """Damage the newest record of the documents: a row of the database, or the last line of the former log."""
    if (index / "index.db").exists():
        with sqlite3.connect(index / "index.db") as connection:
            connection.execute(
                "UPDATE texts SET checksum = checksum + 1 WHERE page_id IN (SELECT max(page_id) FROM texts)"
            )
        connection.close()
        return
    (file,) = metadata_files(index)
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


def test_1_a_stale_object_adds_nothing_after_a_repair(world):
    opened(world).set_metadata({"year": 2020})
    stale = opened(world)
    assert best(stale, 111) == ("b.pdf", 1)
    damage_metadata(world / "my.index")
    assert check_index(world / "my.index", fix=True) != []
    assert stale.add(world / "docs").pages == 0
    require_intact(world)
    assert best(stale, 121) == ("c.pdf", 1)


def test_1_two_objects_alternate_as_writers_with_repairs_between(world):
    first, second = opened(world), opened(world)
    for number in range(4):
        write_pdf(world / "docs" / f"n{number}.pdf", [200 + number])
        writer, other = (first, second) if number % 2 else (second, first)
        assert writer.add(world / "docs").added == 1
        check_index(world / "my.index", fix=True)
        other.add(world / "docs")
        assert best(other, 200 + number) == best(writer, 200 + number) == (f"n{number}.pdf", 1)
    assert [best(opened(world), 200 + n)[0] for n in range(4)] == [f"n{n}.pdf" for n in range(4)]
    assert check_index(world / "my.index") == []


# 2. The index is re-created, restored or repaired under an open reader.


def test_2_a_reader_of_a_re_created_index_sees_only_the_new_one(world):
    reader = opened(world)
    assert best(reader, 101) == ("a.pdf", 1)
    shutil.rmtree(world / "my.index")
    write_text_pdf(world / "others" / "x.pdf", [(301, "xylophone revenue")])
    Index.create(world / "my.index", NumberReader(), AnchorFold(ratio=0.5)).add(world / "others")
    assert best(reader, 101) == best(reader, 301) == ("x.pdf", 1)
    assert texts(reader, "revenue") == ["x.pdf"]
    assert reader.add(world / "docs").added == 3
    assert texts(opened(world), "revenue") == ["a.pdf", "b.pdf", "c.pdf", "x.pdf"]
    assert check_index(world / "my.index") == []


def test_2_a_reader_of_a_restored_index_sees_the_backup(world):
    reader = opened(world)
    shutil.copytree(world / "my.index", world / "backup")
    write_text_pdf(world / "docs" / "d.pdf", [(401, "damson revenue")])
    opened(world).add(world / "docs")
    assert best(reader, 401) == ("d.pdf", 1)
    shutil.rmtree(world / "my.index")
    shutil.copytree(world / "backup", world / "my.index")
    assert texts(reader, "revenue") == ["a.pdf", "b.pdf", "c.pdf"]
    assert best(reader, 401) != ("d.pdf", 1)
    write_text_pdf(world / "docs" / "d.pdf", [(402, "dewberry revenue")])  # as many commits as before the restore
    opened(world).add(world / "docs")
    assert best(reader, 402) == ("d.pdf", 1)
    assert texts(reader, "damson") == []
    assert check_index(world / "my.index") == []


# 3. A missing database.


def test_3_an_index_without_its_database_is_not_created_again(world):
    index = world / "my.index"
    for name in ("index.db", "head"):
        (index / name).unlink(missing_ok=True)
    before = sorted(path.name for path in index.rglob("*.seg"))
    with pytest.raises(AnchorFoldError):
        Index.open_or_create(index, NumberReader(), AnchorFold(ratio=0.5))
    with pytest.raises(AnchorFoldError):
        Index.create(index, NumberReader(), AnchorFold(ratio=0.5))
    assert sorted(path.name for path in index.rglob("*.seg")) == before != []
    check_index(index, fix=True)
    assert best(opened(world), 111) == ("b.pdf", 1)
    assert check_index(index) == []


# 4. Repair.


def metadata_files(index: Path) -> list[Path]:
    return [index / "index.db"] if (index / "index.db").exists() else sorted((index / "logs").iterdir())


def test_4_repair_keeps_what_is_intact_and_reports_what_it_restores(world):
    index, pristine = world / "my.index", world / "pristine.index"
    shutil.copytree(index, pristine)
    (file,) = metadata_files(index)
    size = file.stat().st_size
    rng = np.random.default_rng(5)
    restored = 0
    for byte in [30, *rng.integers(0, size, 40).tolist()]:
        shutil.rmtree(index)
        shutil.copytree(pristine, index)
        data = bytearray(file.read_bytes())
        data[byte] ^= 1 << int(rng.integers(8))
        file.write_bytes(data)
        vectors = {path.read_bytes() for path in index.rglob("*.seg")}
        damages = check_index(index, fix=True)
        assert check_index(index) == []
        assert vectors <= {path.read_bytes() for path in index.rglob("*.seg")}, (
            f"byte {byte}: a vector file was deleted"
        )
        reader = opened(world)
        assert [best(reader, n)[0] for n in (101, 111, 121)] == ["a.pdf", "b.pdf", "c.pdf"], f"byte {byte}"
        if best(reader, 131) == ("r.pdf", 1):
            restored += 1
            assert any("r.pdf" in name for damage in damages for name in damage.documents), f"byte {byte}"


def test_4_a_lost_database_is_rebuilt_and_removed_documents_are_reported(world):
    index = world / "my.index"
    (index / "index.db").unlink()
    damages = check_index(index, fix=True)
    reported = [name for damage in damages for name in damage.documents if "restored" in damage.problem]
    assert any("r.pdf" in name for name in reported) == (best(opened(world), 131) == ("r.pdf", 1))
    assert [best(opened(world), n)[0] for n in (101, 111, 121)] == ["a.pdf", "b.pdf", "c.pdf"]
    opened(world).add(world / "docs")
    assert "a.pdf" in texts(opened(world), "apple")  # the text was read again


# 5. A crash during creation.


def killed_at_statement(function, number: int) -> bool:
    """Run a function in a child that ends at the n-th SQL statement; returns whether it got that far."""

    def run() -> None:
        connect, statements = sqlite3.connect, 0

        def count(_: str) -> None:
            nonlocal statements
            statements += 1
            if statements >= number:
                os._exit(77)

        def traced(*arguments, **options) -> sqlite3.Connection:
            connection = connect(*arguments, **options)
            connection.set_trace_callback(count)
            return connection

        sqlite3.connect = traced  # type: ignore[assignment]
        function()
        os._exit(0)

    child = forks.Process(target=run)
    child.start()
    child.join(SECONDS)
    assert child.exitcode in (0, 77)
    return child.exitcode == 77


def test_5_a_crash_at_any_point_of_a_creation_leaves_nothing_that_blocks_the_next_one(tmp_path):
    folder = tmp_path / "my.index"

    def create() -> None:
        Index.create(folder, NumberReader(), AnchorFold(ratio=0.5))

    write_text_pdf(tmp_path / "a.pdf", [(101, "apple revenue")])
    number, crashes = 1, 0
    while killed_at_statement(create, number):
        index = Index.open_or_create(folder, NumberReader(), AnchorFold(ratio=0.5))
        assert index.add(tmp_path / "a.pdf").added == 1
        assert texts(index, "revenue") == ["a.pdf"]
        assert check_index(folder) == []
        shutil.rmtree(folder)
        number, crashes = number + 3, crashes + 1
    assert crashes > 5


# 6. A crash between the text and the commit.


def killed_at_writing(function, folder: Path, number: int) -> bool:
    """Run a function in a child that ends when it opens the n-th file of an index for writing.

    Returns:
        Whether it got that far.
    """

    def run() -> None:
        opened_files = 0

        def count(event: str, arguments: tuple) -> None:
            nonlocal opened_files
            if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR) and str(folder) in str(arguments[0]):
                opened_files += 1
                if opened_files >= number:
                    os._exit(77)

        torch.set_num_threads(1)  # a pool of threads does not survive the fork
        sys.addaudithook(count)
        function()
        os._exit(0)

    child = forks.Process(target=run)
    child.start()
    child.join(SECONDS)
    assert child.exitcode in (0, 77)
    return child.exitcode == 77


def test_6_text_of_an_uncommitted_document_is_not_inherited(world, monkeypatch):
    row = Ingest._row
    write_text_pdf(world / "ghost" / "g.pdf", [(501, "ghost words")])
    write_pdf(world / "silent" / "s.pdf", [502])
    index, template = world / "my.index", world / "template.index"
    shutil.copytree(index, template)
    number = crashes = 0
    while killed_at_writing(lambda: opened(world).add(world / "ghost"), index, number := number + 1):
        if opened(world).info().documents == 3:  # without the one of the child
            with monkeypatch.context() as patch:
                patch.setattr(Ingest, "_row", lambda *a, **k: row(*a, **{**k, "text": None}))
                assert not killed_at_writing(lambda: opened(world).add(world / "silent"), index, 1000)
            assert texts(opened(world), "ghost") == []
            crashes += 1
        shutil.rmtree(index)
        shutil.copytree(template, index)
    assert crashes > 2


# 7. Text search and maintenance of large indexes.


class CountingCursor(sqlite3.Cursor):
    rows = 0

    def __next__(self):
        row = super().__next__()
        CountingCursor.rows += 1
        return row

    def fetchall(self):
        return list(self)


class CountingConnection(sqlite3.Connection):
    def execute(self, *arguments):
        return self.cursor(CountingCursor).execute(*arguments)


def test_7_few_rows_are_fetched_for_a_frequent_word_and_for_an_add_of_nothing(tmp_path, monkeypatch):
    write_text_pdf(tmp_path / "long.pdf", [(100 + page, "common report") for page in range(24)])
    index = Index.create(tmp_path / "my.index", NumberReader(), AnchorFold(ratio=0.5))
    index.add(tmp_path / "long.pdf")
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, **k, factory=CountingConnection))
    CountingCursor.rows = 0
    assert len(index.search("common report", mode="text", top_k=1)) == 1
    assert 0 < CountingCursor.rows < 24
    CountingCursor.rows = 0
    assert index.add(tmp_path / "long.pdf").pages == 0
    assert CountingCursor.rows < 24


# 8. Derived files.


def test_8_damaged_posting_lists_are_ignored(tmp_path, monkeypatch):
    write_pdf(tmp_path / "long.pdf", list(range(100, 112)))
    for name, value in (("FIRST_PAGES", 5), ("LISTED_ROWS", 5)):
        monkeypatch.setattr(candidate_files, name, value)
    folder = tmp_path / "my.index"
    created = Index.create(folder, NumberReader(), AnchorFold(ratio=0.5))
    before = set(folder.rglob("*"))
    monkeypatch.setattr(candidate_files, "FIRST_PAGES", 1000)
    created.add(tmp_path / "long.pdf")
    before |= set(folder.rglob("*"))
    monkeypatch.setattr(candidate_files, "FIRST_PAGES", 5)
    created.add(tmp_path / "long.pdf")
    files = [path for path in folder.rglob("*") if path not in before and path.suffix != ".log"]
    assert len(files) >= 2
    right = [best(Index.open(folder, NumberReader()), number) for number in (101, 111)]
    for path in files:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    index = Index.open(folder, NumberReader())
    assert [best(index, number) for number in (101, 111)] == right == [("long.pdf", 2), ("long.pdf", 12)]
    assert {damage.file for damage in check_index(folder)} == {str(path.relative_to(folder)) for path in files}
    index.add(tmp_path / "long.pdf")
    assert check_index(folder) == []


# 9. Fork.


def answer(index: Index, queue) -> None:
    queue.put([best(index, n) for n in (101, 111)])


def test_9_a_forked_child_searches_with_an_index_that_was_searched_by_threads(world):
    index = opened(world)
    expected = [best(index, n) for n in (101, 111)]
    stop = threading.Event()

    def keep_searching() -> None:
        while not stop.is_set():
            index.search_vectors([number_vectors(101)], top_k=1)

    thread = threading.Thread(target=keep_searching)
    thread.start()
    try:
        queue = forks.Queue()
        index.search_vectors([number_vectors(111)], top_k=1)
    finally:
        stop.set()
        thread.join()
    children = [forks.Process(target=answer, args=(index, queue)) for _ in range(3)]  # like gunicorn --preload
    for child in children:
        child.start()
    try:
        assert [queue.get(timeout=SECONDS) for _ in children] == [expected] * 3
        assert [best(index, n) for n in (101, 111)] == expected
    finally:
        for child in children:
            child.join(10)
            child.kill()


def write_in_child(index: Index, world: Path, queue) -> None:
    queue.put(index.remove("*c.pdf"))


def test_9_a_forked_child_writes_and_the_parent_sees_it(world):
    index, queue = opened(world), forks.Queue()
    assert best(index, 121) == ("c.pdf", 1)
    child = forks.Process(target=write_in_child, args=(index, world, queue))
    child.start()
    assert len(queue.get(timeout=SECONDS)) == 1
    child.join(SECONDS)
    assert texts(index, "revenue") == ["a.pdf", "b.pdf"]
    assert check_index(world / "my.index") == []


def test_9_a_lock_that_another_thread_holds_is_free_in_a_forked_child(world):
    index, queue = opened(world), forks.Queue()
    best(index, 101)
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        store = index.store
        assert isinstance(store, EmbeddedStore)
        with store._segments._lock, store.pages._lock:
            held.set()
            release.wait(SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(SECONDS)
    child = forks.Process(target=answer, args=(index, queue))
    child.start()
    try:
        assert queue.get(timeout=SECONDS)[0] == ("a.pdf", 1)
    finally:
        release.set()
        thread.join()
        child.join(10)
        child.kill()


# 10. SQLite cannot open its files.


def exhaust_descriptors(index: Path, queue) -> None:
    reader = Index.open(index, NumberReader())
    reader.search("page 101")
    used = len(os.listdir("/proc/self/fd"))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 40, hard))
    messages: list[str] = []
    files = []
    try:
        while True:
            files.append(open(os.devnull))  # noqa: SIM115
    except OSError:
        pass
    for spare in range(6):
        try:
            reader.search("revenue", mode="text")
            messages.append("")
        except AnchorFoldError as error:
            messages.append(str(error))
        except Exception as error:
            messages.append(f"traceback: {error!r}")
        files[spare].close()
    queue.put(messages)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_10_missing_descriptors_are_not_reported_as_missing_permissions(world):
    queue = forks.Queue()
    queue.put("ready")  # starts its thread before the descriptors are gone
    assert queue.get(timeout=SECONDS) == "ready"
    child = forks.Process(target=exhaust_descriptors, args=(world / "my.index", queue))
    child.start()
    messages = queue.get(timeout=SECONDS)
    child.join(SECONDS)
    assert messages[0]
    assert all("descriptors" in message for message in messages if message), messages
    require_intact(world)


def test_10_a_full_disk_is_not_reported_as_missing_permissions(world, monkeypatch):
    def cannot_open(*_, **__):
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    def no_room(*_, **__):
        raise OSError(28, "No space left on device")

    index = opened(world)
    monkeypatch.setattr(sqlite3, "connect", cannot_open)
    with pytest.raises(StoreError) as unexplained:
        index.search("revenue", mode="text")
    assert "permission" not in str(unexplained.value)
    monkeypatch.setattr(tempfile, "TemporaryFile", no_room)
    with pytest.raises(DiskFullError):
        index.search("revenue", mode="text")
