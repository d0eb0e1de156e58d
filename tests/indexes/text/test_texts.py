"""Texts of pages: stored, updated, added later, read by OCR, and what a crash or damage leaves of them."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from anchorfold import AnchorFold, Index
from anchorfold.errors import AnchorFoldError, DamagedError, MismatchError
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.checking import check
from anchorfold.storage.records import PageText
from anchorfold.storage.repair import repair
from tests.indexes.text.conftest import REPORT
from tests.indexes.text.contents import pages, stored_texts
from tests.number_reader import NumberReader, write_pdf
from tests.text_pages import write_text_pdf


class TestStoring:
    def test_every_page_has_a_text_which_may_be_empty(self, index):
        assert stored_texts(index) == {
            **{("report.pdf", i + 1): text for i, (_, text) in enumerate(REPORT)},
            ("handbook.pdf", 1): "Night work and revenue", ("handbook.pdf", 2): "Dogs and horses", ("scan.png", 1): "",
        }  # fmt: skip
        assert index.store.page_text(index.search("x 202")[0].source, 2) == PageText("Dogs and horses")
        assert index.store.page_text("/nowhere.pdf", 1) is None

    def test_removed_documents_are_removed_from_text_search(self, index):
        index.remove("docs/report.pdf")
        assert {name for name, _ in stored_texts(index)} == {"handbook.pdf", "scan.png"}
        assert pages(index.search("revenue 1", mode="text")) == [("handbook.pdf", 1)]

    def test_a_changed_document_has_only_its_new_text(self, index, folder):
        write_text_pdf(folder / "docs/report.pdf", [(104, "Something about revenue else")])
        assert index.add("docs").changed == 1
        assert [key for key in stored_texts(index) if key[0] == "report.pdf"] == [("report.pdf", 1)]
        assert ("report.pdf", 1) in pages(index.search("revenue 1", mode="text"))
        assert index.search("auditors 1", mode="text") == []

    def test_staged_pages_are_not_returned(self, index, folder, monkeypatch):
        write_text_pdf(folder / "docs/report.pdf", [(110 + i, "staged") for i in range(4)])
        monkeypatch.setattr(EmbeddedStore, "promote", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            index.add("docs")
        assert "staged" in stored_texts(index).values()
        assert index.search("staged 1", mode="text") == []
        assert pages(index.search("auditors 1", mode="text")) == [("report.pdf", 3)]

    def test_text_can_be_left_out(self, folder):
        index = Index.create("bare.index", NumberReader(), AnchorFold(ratio=0.5), text=False)
        index.add("docs")
        assert stored_texts(index) == {}
        assert index.info().text_bytes < 100  # of an empty full-text index
        assert index.modes == ["visual"]
        for mode in ("text", "hybrid"):
            with pytest.raises(AnchorFoldError, match="stores no text: search it with --mode visual"):
                index.search("revenue 1", mode=mode)
        assert pages(index.search("x 202", top_k=1)) == [("handbook.pdf", 2)]

    def test_text_can_be_added_later_without_encoding_a_page(self, folder):
        reader = NumberReader()
        Index.create("bare.index", reader, AnchorFold(ratio=0.5), text=False).add("docs")
        reader.encoded.clear()
        index = Index.open_or_create("bare.index", reader, text=True)
        report = index.add("docs")
        assert (report.texts, report.pages, report.unchanged, reader.encoded) == (6, 0, 3, [])
        assert pages(index.search("auditors 1", mode="text")) == [("report.pdf", 3)]
        assert Index.open("bare.index").settings.text
        assert index.add("docs").texts == 0
        with pytest.raises(MismatchError, match="keeps the text of its pages: leave that option out"):
            Index.open_or_create("bare.index", reader, text=False)

    def test_info_reports_the_size_of_the_text(self, index):
        info = index.info()
        assert info.text_bytes > sum(len(text) for text in stored_texts(index).values()) > 0
        assert info.compression_ratio == pytest.approx(
            info.full_vector_bytes / (info.bytes - info.text_bytes - info.thumbnail_bytes)
        )


class TestDamage:
    def test_a_damaged_text_does_not_affect_visual_search(self, index):
        with sqlite3.connect(index.path / "index.db") as connection:
            connection.execute("UPDATE texts SET text = replace(text, 'Dogs and', 'Dogs und')")
        connection.close()
        assert pages(index.search("x 202", top_k=1, mode="visual")) == [("handbook.pdf", 2)]
        with pytest.raises(DamagedError, match=r"the text of a page does not match its checksum.*`anchorfold check"):
            index.search("horses 1", mode="text")
        (damage,) = check(index.path)
        assert damage.file == "index.db"
        assert damage.problem.endswith("of texts does not match its checksum")
        assert repair(index.path)
        assert check(index.path) == []
        assert index.search("horses 1", mode="text") == []
        assert index.add("docs").texts == 1
        assert pages(index.search("horses 1", mode="text")) == [("handbook.pdf", 2)]

    def test_texts_of_a_lost_database_are_read_again(self, folder):
        reader = NumberReader()
        index = Index.create("own.index", reader, AnchorFold(ratio=0.5))
        index.add("docs")
        os.unlink(index.path / "index.db")
        with pytest.raises(DamagedError, match=r"index\.db is missing"):
            index.search("horses 1", mode="text")
        repair(index.path)
        assert check(index.path) == []
        reader.encoded.clear()
        assert index.add("docs").texts == 6
        assert reader.encoded == []
        assert pages(index.search("horses 1", mode="text")) == [("handbook.pdf", 2)]
        assert index.page("docs/handbook.pdf", 2).thumbnail.startswith(b"RIFF")


WORKER = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from tests.number_reader import NumberReader
from anchorfold import Index
from anchorfold.ingestion import ingest
from anchorfold.storage import sqlite_store
ingest.COMMIT_PAGES, ingest.COMMIT_SHARE = 2, 1e9
seal, left = sqlite_store.seal, int(sys.argv[2])

def dying(connection):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)  # everything is written, nothing is committed
    seal(connection)

sqlite_store.seal = dying
Index.open("my.index", NumberReader()).add("docs")
"""


@pytest.mark.parametrize("commit", [1, 3])
def test_a_writer_that_dies_before_a_commit_leaves_neither_texts_nor_pages(index, folder, commit):
    root = Path(__file__).parents[3]
    write_text_pdf(folder / "docs/new.pdf", [(401 + i, f"ghost number{i}") for i in range(7)])
    worker = subprocess.run([sys.executable, "-c", WORKER, root, str(commit)], cwd=folder, check=False)
    assert worker.returncode == -signal.SIGKILL
    ghosts = [page for (name, page), text in stored_texts(index).items() if text.startswith("ghost")]
    live = [page for name, page in pages(index.search("ghost 1", mode="text"))]
    assert sorted(live) == sorted(ghosts) == list(range(1, 2 * commit - 1))
    assert check(index.path) == []
    os.unlink(folder / "docs/new.pdf")
    write_text_pdf(folder / "docs/other.pdf", [(501, "somebody else"), (502, "and more")])
    index.add("docs", prune=True)
    assert index.search("ghost 1", mode="text") == []
    assert not any(text.startswith("ghost") for text in stored_texts(index).values())
    assert pages(index.search("somebody 1", mode="text")) == [("other.pdf", 1)]
    assert check(index.path) == []


def test_text_that_is_enabled_during_a_replacement_is_read_for_all_pages(folder):
    reader = NumberReader()
    index = Index.create("bare.index", reader, AnchorFold(ratio=0.5), text=False)
    index.add("docs")
    write_text_pdf(folder / "docs/report.pdf", [(110 + i, f"new words {i}") for i in range(4)])
    reader.encoded.clear()
    index.add("docs", stop=lambda: len(reader.encoded) >= 2)
    index = Index.open_or_create("bare.index", reader, text=True)
    index.add(folder / "docs/handbook.pdf")
    index.add(folder / "docs/scan.png")
    index.add("docs")
    assert {page for name, page in stored_texts(index) if name == "report.pdf"} == {1, 2, 3, 4}
    assert len(index.search("words 1", mode="text")) == 4


@pytest.mark.slow
def test_pages_without_a_text_layer_are_read_by_ocr(folder):
    from PIL import Image, ImageDraw, ImageFont

    picture = Image.new("RGB", (700, 300), "white")
    ImageDraw.Draw(picture).text((40, 100), "Invoice 88214", "black", ImageFont.load_default(60))
    (folder / "mixed").mkdir()
    picture.save(folder / "mixed/invoice.png")
    write_pdf(folder / "mixed/bands.pdf", [1])
    write_text_pdf(folder / "mixed/text.pdf", [(2, "a layer")])
    reader = NumberReader()
    reader.page_pixels = 300_000
    index = Index.create("plain.index", reader, AnchorFold(ratio=0.5))
    index.add("mixed")
    assert index.search("invoice 1", mode="text") == []
    index = Index.open_or_create("plain.index", reader, ocr=True)
    assert index.add("mixed").texts == 2  # the one with a layer is not read again
    assert pages(index.search("invoice 1", mode="text")) == [("invoice.png", 1)]
    assert index.store.page_text(str(folder / "mixed/invoice.png"), 1) == PageText("Invoice 88214", ocr=True)
    assert index.store.page_text(str(folder / "mixed/text.pdf"), 1) == PageText("a layer")
    at_once = Index.create("ocr.index", reader, AnchorFold(ratio=0.5), ocr=True)
    at_once.add("mixed")
    assert stored_texts(at_once) == stored_texts(index)
    assert at_once.add("mixed").texts == 0
