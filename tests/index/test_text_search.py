"""Searching by text and by both: what is kept, what is answered, and what a crash or damage leaves of it."""

import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from anchorfold import AnchorFold, Index
from anchorfold.errors import AnchorFoldError, DamagedError, MismatchError
from anchorfold.index.store.checking import check, repair_index
from anchorfold.index.store.table import PageTable
from anchorfold.index.store.texts import PAGE_BITS, PageText
from tests.number_reader import NumberReader, page_image, write_pdf
from tests.text_pages import write_text_pdf

REPORT = [(101, "Letter to our shareholders"), (102, "Net revenues of the northern region rose"), (103, "The auditors")]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """docs/ with a report, a handbook and a scan, and my.index of them."""
    folder = tmp_path_factory.mktemp("text")
    write_text_pdf(folder / "docs/report.pdf", REPORT)
    write_text_pdf(folder / "docs/handbook.pdf", [(201, "Night work and revenue"), (202, "Dogs and horses")])
    page_image(300).save(folder / "docs/scan.png")
    index = Index.create(folder / "my.index", NumberReader(), AnchorFold(ratio=0.5))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        index.add("docs")
    return folder


@pytest.fixture
def folder(made, tmp_path, monkeypatch):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def index(folder):
    opened = Index.open("my.index", NumberReader())
    opened._table.move({v.source: str(folder / v.name) for v in opened._table.state.documents.values()})
    return opened


def pages(hits):
    return [(Path(hit.document).name, hit.page) for hit in hits]


def stored_texts(index):
    table = PageTable.open(index.path)
    names = {n: Path(v.name).name for n, v in table.state.documents.items()}
    return {(names.get(n >> PAGE_BITS), n & 0xFFFF): table.texts.text(n).text for n in table.texts.numbers().tolist()}


class TestSearching:
    def test_by_text_alone_needs_no_model(self, index, monkeypatch):
        monkeypatch.setattr(index, "encode_queries", None)
        hits = index.search("revenue of northern regions 0", mode="text")
        assert pages(hits)[0] == ("report.pdf", 2)
        assert set(pages(hits)) == {("report.pdf", 2), ("handbook.pdf", 1)}
        assert hits[0].score == hits[0].text > hits[1].text > 0
        assert hits[0].visual is None
        assert [hits[0].snippet[a:b] for a, b in hits[0].matches] == ["revenues", "of", "northern", "region"]

    def test_by_both_knows_the_score_of_each_side(self, index):
        looks = {(h.document, h.page): h.score for h in index.search("auditor 202")}
        hits = index.search("auditor 202", top=6, mode="hybrid")
        assert {pages(hits)[0], pages(hits)[1]} == {("report.pdf", 3), ("handbook.pdf", 2)}
        assert len(hits) == 6
        for hit in hits:
            assert hit.visual == looks[hit.document, hit.page]
            assert (hit.text > 0) == (hit.snippet != "") == (pages([hit]) == [("report.pdf", 3)])
        assert hits == sorted(hits, key=lambda hit: -hit.score)

    def test_without_a_word_that_matches_both_is_visual(self, index):
        seen, both = (index.search("zzz 202", mode=mode) for mode in ("visual", "hybrid"))
        assert pages(both) == pages(seen)
        assert index.search("zzz 7", mode="text") == []
        assert index.search(" ?! ", mode="text") == []

    def test_what_looks_find_far_down_is_scored_too(self, index, monkeypatch):
        from anchorfold.index import hybrid

        monkeypatch.setattr(hybrid, "POOL", 1)
        hits = index.search("auditor 202", top=2, mode="hybrid")
        assert set(pages(hits)) == {("report.pdf", 3), ("handbook.pdf", 2)}
        assert all(hit.visual is not None for hit in hits)

    @pytest.mark.parametrize("mode", ["text", "hybrid"])
    def test_filters_hold(self, index, mode):
        hits = index.search("revenue 102", mode=mode, documents="*handbook*")
        assert {name for name, _ in pages(hits)} == {"handbook.pdf"}
        with pytest.raises(AnchorFoldError, match="no document that matches nowhere"):
            index.search("revenue 102", mode=mode, documents="nowhere")

    @pytest.mark.parametrize("mode", ["text", "hybrid"])
    def test_conditions_hold_and_metadata_is_shown(self, index, mode):
        index.describe({"year": 2024}, documents="*handbook*")
        hits = index.search("revenue 102", mode=mode, where="year >= 2024")
        assert {name for name, _ in pages(hits)} == {"handbook.pdf"}
        assert hits[0].metadata["year"] == 2024
        assert index.search("revenue 102", mode=mode, where="year > 2024") == []

    def test_several_queries(self, index):
        answers = index.search(["horses 1", "auditors 1"], top=1, mode="text")
        assert [pages(hits) for hits in answers] == [[("handbook.pdf", 2)], [("report.pdf", 3)]]

    def test_a_mode_that_there_is_not(self, index):
        with pytest.raises(AnchorFoldError, match="no mode 'semantic' of searching: choose one of visual, text"):
            index.search("x 1", mode="semantic")


class TestKeeping:
    def test_every_page_has_a_row_also_one_that_says_nothing(self, index):
        assert stored_texts(index) == {
            **{("report.pdf", i + 1): text for i, (_, text) in enumerate(REPORT)},
            ("handbook.pdf", 1): "Night work and revenue", ("handbook.pdf", 2): "Dogs and horses", ("scan.png", 1): "",
        }  # fmt: skip
        assert index.text_at(index.search("x 202")[0].source, 2) == PageText("Dogs and horses")
        assert index.text_at("/nowhere.pdf", 1) is None

    def test_removing_takes_the_text_along(self, index):
        index.remove("docs/report.pdf")
        assert {name for name, _ in stored_texts(index)} == {"handbook.pdf", "scan.png"}
        assert pages(index.search("revenue 1", mode="text")) == [("handbook.pdf", 1)]

    def test_a_changed_document_has_its_new_text_alone(self, index, folder):
        write_text_pdf(folder / "docs/report.pdf", [(104, "Something about revenue else")])
        assert index.add("docs").changed == 1
        assert [key for key in stored_texts(index) if key[0] == "report.pdf"] == [("report.pdf", 1)]
        assert ("report.pdf", 1) in pages(index.search("revenue 1", mode="text"))
        assert index.search("auditors 1", mode="text") == []

    def test_staged_pages_are_not_answered(self, index, folder, monkeypatch):
        write_text_pdf(folder / "docs/report.pdf", [(110 + i, "staged") for i in range(4)])
        monkeypatch.setattr(PageTable, "promote", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            index.add("docs")
        assert "staged" in stored_texts(index).values()
        assert index.search("staged 1", mode="text") == []
        assert pages(index.search("auditors 1", mode="text")) == [("report.pdf", 3)]

    def test_none_is_kept_if_none_is_wanted(self, folder):
        index = Index.create("bare.index", NumberReader(), AnchorFold(ratio=0.5), text=False)
        index.add("docs")
        assert not (folder / "bare.index/text.sqlite").exists()
        assert index.info().text_bytes == 0
        assert index.modes == ["visual"]
        for mode in ("text", "hybrid"):
            with pytest.raises(AnchorFoldError, match="keeps no text: search it with --mode visual"):
                index.search("revenue 1", mode=mode)
        assert pages(index.search("x 202", top=1)) == [("handbook.pdf", 2)]

    def test_it_can_be_added_later_without_encoding_a_page(self, folder):
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

    def test_info_tells_what_it_costs(self, index):
        info = index.info()
        assert info.text_bytes == os.stat(index.path / "text.sqlite").st_size > 0
        assert info.times_smaller == pytest.approx(
            info.full_vector_bytes / (info.bytes - info.text_bytes - info.thumbnail_bytes)
        )


class TestDamage:
    def test_damaged_text_costs_neither_pages_nor_their_search(self, index, folder):
        path = folder / "my.index/text.sqlite"
        data = path.read_bytes()
        assert data.count(b"Dogs and horses") == 1
        path.write_bytes(data.replace(b"Dogs and horses", b"Dogs und horses"))
        assert pages(index.search("x 202", top=1)) == [("handbook.pdf", 2)]
        with pytest.raises(DamagedError, match=r"`anchorfold check .*` tells"):
            index.search("horses 1", mode="text")
        assert [(d.file, d.problem) for d in check(index.path)] == [
            ("text.sqlite", "a text in text.sqlite does not match its checksum")
        ]
        assert len(repair_index(index.path)) == 1
        assert check(index.path) == []
        assert index.search("horses 1", mode="text") == []
        assert index.add("docs").texts == 1
        assert pages(index.search("horses 1", mode="text")) == [("handbook.pdf", 2)]

    def test_a_file_that_is_gone_is_made_again(self, index, folder):
        os.unlink(folder / "my.index/text.sqlite")
        assert [d.problem for d in check(index.path)] == ["it is missing"]
        with pytest.raises(AnchorFoldError, match="keeps no text"):
            index.search("horses 1", mode="text")
        repair_index(index.path)
        assert check(index.path) == []
        assert index.add("docs").texts == 6
        assert pages(index.search("horses 1", mode="text")) == [("handbook.pdf", 2)]


WORKER = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tests.number_reader import NumberReader
from anchorfold import Index
from anchorfold.index import ingest
from anchorfold.index.store.catalogue import Catalogue
ingest.COMMIT_PAGES, ingest.COMMIT_SHARE = 2, 1e9
commit, left = Catalogue.commit, int(sys.argv[2])

def dying(self, state, patch):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)  # the texts are written, the log is not
    return commit(self, state, patch)

Catalogue.commit = dying
Index.open("my.index", NumberReader()).add("docs")
"""


@pytest.mark.parametrize("commit", [1, 3])
def test_a_writer_that_dies_between_the_two_commits_leaves_nothing_that_counts(index, folder, commit):
    root = Path(__file__).parent.parent.parent
    write_text_pdf(folder / "docs/new.pdf", [(401 + i, f"ghost number{i}") for i in range(7)])
    worker = subprocess.run([sys.executable, "-c", WORKER, root, str(commit)], cwd=folder, check=False)
    assert worker.returncode == -signal.SIGKILL
    ghosts = [text for text in stored_texts(index).values() if text.startswith("ghost")]
    live = [page for name, page in pages(index.search("ghost 1", mode="text"))]
    assert len(ghosts) > len(live)  # written, and not answered
    assert check(index.path) == []
    os.unlink(folder / "docs/new.pdf")  # another document gets the number
    write_text_pdf(folder / "docs/other.pdf", [(501, "somebody else"), (502, "and more")])
    index.remove([] if not live else "docs/new.pdf")
    index.add("docs")
    assert index.search("ghost 1", mode="text") == []
    assert not any(text.startswith("ghost") for text in stored_texts(index).values())
    assert pages(index.search("somebody 1", mode="text")) == [("other.pdf", 1)]
    assert check(index.path) == []


def test_searching_goes_on_while_documents_come_and_go(index, folder):
    for number in range(6):
        write_text_pdf(folder / f"docs/more{number}.pdf", [(600 + number, "horses")])
    problems, done = [], threading.Event()

    def search():
        reader = Index.open("my.index", NumberReader())
        while not done.is_set():
            try:
                assert ("handbook.pdf", 2) in pages(reader.search("horses 202", mode="text"))
                assert ("handbook.pdf", 2) in pages(reader.search("horses 202", mode="hybrid"))
            except BaseException as error:
                problems.append(error)
                return

    readers = [threading.Thread(target=search) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(2):
        assert index.add("docs").added == 6
        index.remove("docs/more*")
    done.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert check(index.path) == []


@pytest.mark.slow
def test_pages_without_a_text_layer_are_read_if_that_is_wanted(folder):
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
    assert index.text_at(str(folder / "mixed/invoice.png"), 1) == PageText("Invoice 88214", ocr=True)
    assert index.text_at(str(folder / "mixed/text.pdf"), 1) == PageText("a layer")
    at_once = Index.create("ocr.index", reader, AnchorFold(ratio=0.5), ocr=True)
    at_once.add("mixed")
    assert stored_texts(at_once) == stored_texts(index)
    assert at_once.add("mixed").texts == 0
