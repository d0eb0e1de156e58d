"""Pages, documents and metadata as one commit returns them."""

import threading

import pytest
import torch

from anchorfold.errors import AnchorFoldError, DamagedError
from anchorfold.quantization.codec import BITS
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage import segment as segments
from anchorfold.storage.records import PageText
from anchorfold.storage.schema import page_id
from tests.number_reader import DIM
from tests.storage.page_rows import SOURCE, live_pages, make_store, page_row

CLOSE = {32: 0, 16: 1e-3, 8: 8e-3, 4: 0.15, 2: 0.5, 1: 1.0}


@pytest.mark.parametrize("bits", BITS)
def test_pages_are_read_as_they_were_written(tmp_path, bits):
    rows = [page_row(1, thumbnail=b"image"), page_row(2, vectors=1, grid=False), page_row(3, vectors=9)]
    make_store(tmp_path / "my.index", rows, bits=bits)
    store = EmbeddedStore.open(tmp_path / "my.index")
    for given in rows:
        stored = store.read_page(given.source, given.page, lambda page: (page.encoded(), page.details()))
        assert stored is not None
        assert given.encoded is not None
        encoded, details = stored
        assert torch.allclose(encoded.vectors, given.encoded.vectors, atol=CLOSE[bits], rtol=0)
        assert torch.equal(encoded.anchors, given.encoded.anchors)
        assert torch.equal(encoded.groups, given.encoded.groups)
        assert torch.allclose(encoded.weights, given.encoded.weights, atol=0.2)
        assert encoded.grid == given.encoded.grid
        assert encoded.full == details["full"] == 24
        assert details["kept"] == len(given.encoded)
        assert (details["thumbnail"], details["problem"]) == (given.thumbnail, None)


def test_an_unreadable_page_has_a_problem_and_no_vectors(tmp_path):
    store = make_store(tmp_path / "my.index", [page_row(1, encoded=None, problem="damaged: ü"), page_row(2)])
    details = store.read_page(SOURCE, 1, lambda page: page.details()) or {}
    assert (details["kept"], details["problem"]) == (0, "damaged: ü")
    assert store.documents()[SOURCE].stored == 2
    assert live_pages(store) == [(SOURCE, 2, "d")]
    assert store.info().unreadable_pages == 1


def test_provenance_can_be_left_out(tmp_path):
    store = make_store(tmp_path / "my.index", [page_row(1)], provenance=False)
    assert store.read_page(SOURCE, 1, lambda page: page.vectors.shape) == (5, DIM)
    with pytest.raises(AnchorFoldError, match="--no-provenance"):
        store.read_page(SOURCE, 1, lambda page: page.encoded())


def test_pages_that_do_not_exist(tmp_path):
    store = make_store(tmp_path / "my.index", [page_row(1), page_row(1, source="/staged.pdf", live=False)])
    for source, page in ((SOURCE, 2), ("/nowhere.pdf", 1), ("/staged.pdf", 1)):
        assert store.read_page(source, page, lambda page: page) is None
        assert store.page_text(source, page) is None


def test_texts_and_thumbnails_are_verified_when_they_are_read(tmp_path):
    row = page_row(1, text=PageText("words"), thumbnail=b"image")
    store = make_store(tmp_path / "my.index", [row], text=True)
    identity = page_id(1, 1)
    with store.database.connect(write=True, check=False) as connection:
        connection.execute("UPDATE texts SET text = 'other'")
        connection.execute("UPDATE page_payloads SET thumbnail = x'00'")
    connection.close()
    with pytest.raises(DamagedError, match="the text of a page does not match its checksum"):
        store.read(lambda snapshot: snapshot.text(identity))
    with pytest.raises(DamagedError, match="the thumbnail of a page does not match its checksum"):
        store.read(lambda snapshot: snapshot.payload(identity))
    assert store.read(lambda snapshot: snapshot.text(7)) is None


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE documents SET metadata = '{\"year\": 2025}'", "the entry of document 1 does not match its checksum"),
        ("UPDATE versions SET size = size + 1", "the entry of document 1 does not match its checksum"),
        ("UPDATE versions SET live = 0", "the live versions do not match the checksum"),
        ("UPDATE vector_files SET bytes = 1", "the registry of vector files does not match the checksum"),
        ("UPDATE metadata_columns SET type = 'text'", "the metadata columns do not match the checksum"),
        ("UPDATE index_info SET text_complete = 0", "index_info does not match its checksum"),
        ("DELETE FROM index_info", "index_info does not match its checksum"),
    ],
)
def test_rows_that_were_changed_by_others_are_reported(tmp_path, statement, problem):
    store = make_store(tmp_path / "my.index", [page_row(1)])
    with store.writing():
        store.set_metadata({SOURCE: {"year": 2024}}, {"year": "integer"})
    with store.database.connect(check=False) as connection:
        connection.execute(statement)
    connection.close()
    with pytest.raises(DamagedError, match=problem):
        store.read(lambda s: (s.live_ids(), s.files, s.given_columns, list(s.versions())))


def test_many_versions_are_read_by_id(tmp_path, monkeypatch):
    monkeypatch.setattr("anchorfold.storage.snapshot.BATCH", 3)
    store = make_store(tmp_path / "my.index", [page_row(1, source=f"/{n}.pdf") for n in range(8)])
    found = store.read(lambda snapshot: snapshot.versions_by_id([8, 2, 2, 5, 1, 99]))
    assert {number: version.source for number, version in found.items()} == {
        1: "/0.pdf", 2: "/1.pdf", 5: "/4.pdf", 8: "/7.pdf"
    }  # fmt: skip


class TestConcurrentReaders:
    def test_a_reader_continues_while_its_files_are_merged_away(self, tmp_path):
        store = make_store(tmp_path / "my.index", [page_row(p) for p in range(1, 8)])
        reader, unopened = EmbeddedStore.open(store.folder), EmbeddedStore.open(store.folder)

        def replace_files(snapshot):
            before = [segment.vectors(0, store.settings.coding).tobytes() for segment in snapshot.segments().values()]
            with store.writing():
                store.remove([SOURCE])
                store.append([page_row(8, source="/c.pdf")])
                store.tidy()
            after = [segment.vectors(0, store.settings.coding).tobytes() for segment in snapshot.segments().values()]
            return before == after, [page.source for page in snapshot.pages()]

        # The first attempt fails when it opens a file that is gone; the second one reads the newest commit.
        attempts = []

        def attempt(snapshot):
            attempts.append(snapshot.version)
            return replace_files(snapshot) if len(attempts) == 1 else [page.source for page in snapshot.pages()]

        assert reader.read(attempt) == ["/c.pdf"]
        assert len(attempts) == 2
        assert live_pages(unopened) == [("/c.pdf", 8, "d")]

    def test_readers_continue_while_a_writer_merges(self, tmp_path, monkeypatch):
        monkeypatch.setattr(segments, "GARBAGE", 0.0)  # every run rewrites everything
        store = make_store(tmp_path / "my.index", [page_row(p) for p in range(1, 6)])
        problems, done = [], threading.Event()

        def read(reader):
            while not done.is_set():
                try:
                    assert 1 in reader.stored_pages([SOURCE])[SOURCE]["d"]
                    assert len(reader.read_page(SOURCE, 1, lambda page: page.encoded())) == 5
                except BaseException as error:
                    problems.append(error)
                    return

        readers = [EmbeddedStore.open(store.folder) for _ in range(2)]
        threads = [threading.Thread(target=read, args=(reader,)) for reader in readers]
        for thread in threads:
            thread.start()
        with store.writing():
            for page in range(6, 30):
                store.append([page_row(page)])
                store.tidy()
        done.set()
        for thread in threads:
            thread.join()
        assert problems == []
