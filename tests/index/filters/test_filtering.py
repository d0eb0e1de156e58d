"""Filters on an index: what documents say of themselves and what people gave, through updates, crashes and repair."""

import contextlib
import datetime
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from anchorfold.index.filters.columns import Columns, Where
from anchorfold.index.store.catalogue import LOGS
from anchorfold.index.store.metadata import Metadata
from anchorfold.index.store.table import PageTable
from fpdf import FPDF

from anchorfold import AnchorFold, Index
from anchorfold.errors import AnchorFoldError, FilterError
from anchorfold.index import candidate_files, scan
from anchorfold.index.candidate_files import update_lists
from anchorfold.index.searching import PageSearch
from anchorfold.index.store.checking import check, repair_index
from tests.index.store.test_pages import row
from tests.index.test_candidates import DIM, page_row, queries_of
from tests.number_reader import NumberReader, index_settings, page_image, write_pdf


@pytest.fixture
def reader():
    return NumberReader()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """reports/ with three documents, and my.index of them; two are described."""
    folder = tmp_path_factory.mktemp("whole")
    write_pdf(folder / "reports/a.pdf", [1, 2, 3])
    write_pdf(folder / "reports/old/b.pdf", [11, 12])
    page_image(77).save(folder / "reports/c.png")
    os.utime(folder / "reports/a.pdf", (1_700_000_000, 1_700_000_000))
    with contextlib.chdir(folder):
        index = Index.create(folder / "my.index", NumberReader(), AnchorFold(ratio=0.5))
        index.add("reports", metadata=lambda path: {"a.pdf": A_KNOWN, "b.pdf": B_KNOWN}.get(path.name))
    return folder


@pytest.fixture
def index(whole, tmp_path, reader, monkeypatch):
    """A copy; its documents count as moved."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    index = Index.open(tmp_path / "my.index", reader)
    with index._writing(-1):
        sources = [version.source for version in index._table.state.documents.values()]
        index._table.move({source: source.replace(str(whole), str(tmp_path)) for source in sources})
    return index


A_KNOWN = {"year": 2024, "team": "sales", "signed": True, "due": datetime.date(2024, 2, 1), "rate": 0.5}
B_KNOWN = {"year": 2023, "team": "legal", "signed": False}


def pages(index, where, **options):
    return sorted((hit.document.split("/")[-1], hit.page) for hit in index.search("page 12", where=where, **options))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("year >= 2024 and team = 'sales'", [("a.pdf", 1), ("a.pdf", 2), ("a.pdf", 3)]),
        ("not year >= 2024", [("b.pdf", 1), ("b.pdf", 2)]),
        ("year is null", [("c.png", 1)]),
        ("page = pages", [("a.pdf", 3), ("b.pdf", 2), ("c.png", 1)]),
        ("page = 2 and not signed", [("b.pdf", 2)]),
        ("page > 1 or team is null", [("a.pdf", 2), ("a.pdf", 3), ("b.pdf", 2), ("c.png", 1)]),
        ("folder = 'reports/old'", [("b.pdf", 1), ("b.pdf", 2)]),
        ("kind = 'png'", [("c.png", 1)]),
        ("document like '%b.pdf'", [("b.pdf", 1), ("b.pdf", 2)]),
        ("modified = '2023-11-14'", [("a.pdf", 1), ("a.pdf", 2), ("a.pdf", 3)]),
        ("due <= '2024-02-01' and rate < 1", [("a.pdf", 1), ("a.pdf", 2), ("a.pdf", 3)]),
        ("year > 3000", []),
    ],
)
def test_a_filter_leaves_the_pages_for_which_it_is_true(index, where, expected):
    assert pages(index, where) == expected


def test_a_filter_and_documents_both_hold(index):
    assert pages(index, "year > 2000", documents="*b.pdf") == [("b.pdf", 1), ("b.pdf", 2)]
    assert pages(index, "year > 2023", documents="*b.pdf") == []


def test_hits_know_their_document_with_the_types_that_were_given(index):
    (hit,) = index.search("page 1", top=1, where="year = 2024")
    assert hit.metadata == {
        "folder": "reports", "kind": "pdf", "pages": 3, "modified": datetime.date(2023, 11, 14), "title": "a",
        **A_KNOWN,
    }  # fmt: skip
    assert [type(hit.metadata[name]) for name in A_KNOWN] == [int, str, bool, datetime.date, float]
    assert hash(hit) == hash(index.search("page 1", top=1)[0])
    assert Index.open(index.path, NumberReader()).search("page 1", top=1)[0].metadata == hit.metadata


def test_facets_are_columns_with_few_values(index):
    facets = {facet.column: facet for facet in index.facets()}
    assert list(facets) == ["year", "team", "signed", "due", "rate", "folder", "kind"]
    assert facets["team"].values == {"legal": 1, "sales": 1}
    assert facets["team"].missing == 1
    assert facets["kind"].values == {"pdf": 2, "png": 1}
    assert index.info().columns == index.columns()
    assert index.columns()["due"] == "date"


def test_a_wrong_filter_is_told_before_a_model_is_loaded(index, monkeypatch):
    monkeypatch.setattr(
        "anchorfold.index.model.IndexModel.encode_queries", lambda *_: pytest.fail("a model was loaded")
    )
    fresh = Index.open(index.path)
    with pytest.raises(FilterError, match="no column 'yaer'"):
        fresh.search("page 1", where="yaer = 1")


def test_a_pdf_says_its_title_author_and_language(tmp_path, reader):
    said = FPDF()
    said.set_lang("de-DE")
    said.set_title("Jahres\u00adbericht\n 2024 \U0001f4c8")
    said.set_author("Ada\x07 Ö.")
    said.add_page()
    said.output(str(tmp_path / "said.pdf"))
    write_pdf(tmp_path / "plain.pdf", [5])
    index = Index.create(tmp_path / "my.index", reader, AnchorFold(ratio=0.5))
    index.add([tmp_path / "said.pdf", tmp_path / "plain.pdf"])
    (hit,) = index.search("page 6", where="language = 'de-DE' and author = 'Ada Ö.'")
    assert hit.metadata["title"] == "Jahres bericht 2024 \U0001f4c8"
    assert len(index.search("page 6", where="title = 'plain' and author is null and language is null")) == 1
    index.describe({"title": "Annual report"}, documents="*said.pdf")
    assert len(index.search("page 6", where="title = 'Annual report'")) == 1
    index.describe({"title": None}, documents="*said.pdf")
    assert len(index.search("page 6", where="title ilike 'jahres%'")) == 1


class TestUpdating:
    def test_metadata_of_unchanged_documents_needs_no_model(self, index, tmp_path, monkeypatch):
        monkeypatch.setattr("anchorfold.load", lambda *_, **__: pytest.fail("a model was loaded"))
        monkeypatch.setattr("anchorfold.index.model.load_model", lambda *_: pytest.fail("a model was loaded"))
        monkeypatch.setattr("anchorfold.index.source.Renderer", lambda *_, **__: pytest.fail("a page was rendered"))
        (tmp_path / "about.csv").write_text("path,year,team\nreports/*,2030,\n")
        segments = sorted(path.name for path in (index.path / "segments").iterdir())
        report = Index.open(index.path).add("reports", metadata=tmp_path / "about.csv")
        assert (report.unchanged, report.described, report.pages) == (3, 3, 0)
        assert pages(index, "year = 2030 and (signed or signed is null)") == [
            ("a.pdf", 1), ("a.pdf", 2), ("a.pdf", 3), ("c.png", 1)
        ]  # fmt: skip
        assert sorted(path.name for path in (index.path / "segments").iterdir()) == segments
        assert "team" not in index.columns()  # the table has taken it away from all
        assert Index.open(index.path).describe(tmp_path / "about.csv").documents == 0
        version = index.version
        index.describe({"year": 2030})
        assert index.version == version  # nothing changed, and nothing was written

    def test_describing_needs_no_documents(self, index, tmp_path):
        (tmp_path / "reports").rename(tmp_path / "elsewhere")
        assert index.describe({"year": 1999}, documents="reports/old").documents == 1
        assert pages(index, "year = 1999") == [("b.pdf", 1), ("b.pdf", 2)]
        with pytest.raises(AnchorFoldError, match="holds no document"):
            index.describe({"year": 1}, documents="nobody.pdf")

    def test_a_document_that_is_replaced_keeps_what_people_said(self, index, reader):
        write_pdf(Path("reports/a.pdf"), [41, 42])
        reader.encoded.clear()
        assert index.add("reports").changed == 1
        assert reader.encoded == [41, 42]
        assert pages(index, "team = 'sales'") == [("a.pdf", 1), ("a.pdf", 2)]
        write_pdf(Path("reports/a.pdf"), [43])
        index.add("reports", metadata={"team": "research"})
        assert pages(index, "team = 'research' and year = 2024") == [("a.pdf", 1)]

    def test_a_version_that_is_not_complete_yet_is_described_with_the_other(self, index):
        write_pdf(Path("reports/a.pdf"), [41, 42, 43])
        index.add("reports", stop=iter([False, True, True, True, True]).__next__)
        assert any(not version.live for version in index._table.state.documents.values())
        index.describe({"team": "research"}, documents="*a.pdf")
        index.add("reports")
        assert pages(index, "team = 'research'") == [("a.pdf", 1), ("a.pdf", 2), ("a.pdf", 3)]

    def test_what_is_removed_is_forgotten(self, index):
        index.remove("*a.pdf")
        assert pages(index, "year >= 2024") == []
        assert all(number in index._table.state.documents for number in index._table.state.metadata)
        index.add("reports")
        assert pages(index, "year is null and page = 3") == [("a.pdf", 3)]

    def test_documents_that_were_moved_keep_theirs_and_take_new(self, index, tmp_path, monkeypatch, reader):
        (tmp_path / "reports").rename(tmp_path / "moved")
        (tmp_path / "there").mkdir()
        (tmp_path / "moved").rename(tmp_path / "there/reports")
        monkeypatch.chdir(tmp_path / "there")
        reader.encoded.clear()
        index.add("reports", metadata={"shelf": "left"})
        assert reader.encoded == []
        assert pages(index, "shelf = 'left' and team = 'legal'") == [("b.pdf", 1), ("b.pdf", 2)]

    def test_a_column_that_nobody_uses_goes(self, index):
        index.describe({"rate": None})
        assert "rate" not in index.columns()
        index.describe({"rate": "high"}, documents="*.png")
        assert index.columns()["rate"] == "text"
        with pytest.raises(AnchorFoldError, match="rate is text in this index"):
            index.describe({"rate": 2}, documents="*a.pdf")

    def test_wrong_metadata_changes_nothing(self, index, reader):
        write_pdf(Path("reports/new.pdf"), [90])
        reader.encoded.clear()
        version = index.version
        with pytest.raises(AnchorFoldError, match="year is an integer in this index"):
            index.add("reports/new.pdf", metadata={"year": "soon"})
        assert (reader.encoded, index.version) == ([], version)

    def test_a_reader_sees_one_version_or_the_next(self, index):
        """All documents change together: a filter never sees half of it."""
        wrong, stop = [], threading.Event()
        searching = Index.open(index.path, NumberReader())

        def search():
            while not stop.is_set():
                hits = searching.search("page 12", where="year is not null")
                if len({hit.metadata["year"] for hit in hits}) > 1 or len(hits) != 6:
                    wrong.append(hits)

        index.describe({"year": 0})
        thread = threading.Thread(target=search)
        thread.start()
        for year in range(1, 30):
            index.describe({"year": year})
        stop.set()
        thread.join()
        assert wrong == []


WORKER = """
import sys
from pathlib import Path
from anchorfold.index.store.lock import writer_lock
from anchorfold.index.store.table import PageTable
table = PageTable.open(Path(sys.argv[1]))
sources = list(table.state.numbers)
print("ready", flush=True)
with writer_lock(table.folder, -1):
    for year in range(10_000):
        known = {"year": year, "text": str(year) * 50}
        table.describe(dict.fromkeys(sources, known), {"year": "integer", "text": "text"})
"""


def test_killed_while_it_describes(index):
    """One version or the next, never a mixture, and nothing is damaged."""
    rng = random.Random(5)
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", WORKER, str(index.path)], stdout=subprocess.PIPE, text=True)
        process.stdout.readline()
        threading.Event().wait(rng.uniform(0.02, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert check(index.path) == []
        opened = Index.open(index.path, NumberReader())
        known = {(hit.metadata.get("year"), hit.metadata.get("text")) for hit in opened.search("page 12")}
        assert len(known) == 1 or known == {(2024, None), (2023, None), (None, None)}
        assert pages(opened, "team = 'sales'") == [("a.pdf", 1), ("a.pdf", 2), ("a.pdf", 3)]


class TestTheLog:
    @pytest.fixture
    def table(self, tmp_path):
        table = PageTable.create(tmp_path / "my.index", index_settings())
        table.append([row(1, source="/a.pdf", document="a.pdf"), row(1, source="/b.pdf", document="b.pdf")])
        table.describe({"/a.pdf": {"year": 2024}, "/b.pdf": {"year": 2023}}, {"year": "integer"})
        table.describe({"/b.pdf": {"mark": 1.0}}, {"mark": "float"})
        return table

    def given(self, table):
        state = table.state
        return {state.documents[number].name: dict(known.given) for number, known in state.metadata.items()}

    def test_it_is_read_as_it_was_written_also_anew(self, table):
        expected = {"a.pdf": {"year": 2024}, "b.pdf": {"year": 2023, "mark": 1.0}}
        assert self.given(table) == self.given(PageTable.open(table.folder)) == expected
        table._state = table._catalogue.write_anew(table._state)
        opened = PageTable.open(table.folder)
        assert self.given(opened) == expected
        assert dict(opened.state.columns) == {"year": "integer", "mark": "float"}

    def test_true_1_and_1_0_are_three_things(self, table):
        assert table.describe({"/b.pdf": {"mark": True}}, {"mark": "boolean"}) == 1
        assert self.given(PageTable.open(table.folder))["b.pdf"]["mark"] is True

    def test_a_flipped_bit_is_known_and_a_repair_keeps_the_rest(self, table):
        (log,) = (table.folder / LOGS).glob("*.log")
        lines = log.read_bytes().splitlines(keepends=True)
        assert b"year" in lines[2]
        lines[2] = lines[2].replace(b"2024", b"2025")
        log.write_bytes(b"".join(lines))
        assert [damage.file for damage in check(table.folder)] == ["head or log"]
        repair_index(table.folder)
        assert check(table.folder) == []
        repaired = PageTable.open(table.folder)
        assert self.given(repaired) == {"b.pdf": {"year": 2023, "mark": 1.0}}
        assert repaired.snapshot(lambda snapshot: Columns(PageSearch(repaired).scanner().live).types)["mark"] == "float"
        assert repaired.describe({"/a.pdf": {"year": 2024}}, {"year": "integer"}) == 1

    def test_what_is_written_costs_what_it_changes(self, table):
        before = table.state.bytes
        table.describe({"/a.pdf": {"year": 2025}}, {"year": "integer"})
        assert 0 < table.state.bytes - before < 200


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """1,500 pages of 50 documents, with a candidate stage."""
    patch = pytest.MonkeyPatch()
    patch.setattr(candidate_files, "FIRST_PAGES", 1000)
    patch.setattr(candidate_files, "LISTED_ROWS", 100)
    patch.setattr(scan, "CANDIDATES", 120)
    patch.setattr(scan, "FEW_PAGES", 40)
    table = PageTable.create(tmp_path_factory.mktemp("many") / "my.index", index_settings(dim=DIM, bits=4))
    rng = np.random.default_rng(1)
    rows = [page_row(number, rng, f"/{number % 50}.pdf") for number in range(1, 1501)]
    for start in range(0, 1500, 500):
        table.append(rows[start : start + 500])
    table.describe({f"/{n}.pdf": {"n": n, "even": n % 2 == 0} for n in range(50)}, {"n": "integer", "even": "boolean"})
    update_lists(table)
    yield table
    patch.undo()


@pytest.mark.parametrize(
    ("where", "left"),
    [
        ("n = 7", 30),
        ("n in (7, 8) and page <= 1240", 50),
        ("even", 750),
        ("even and page > 200", 650),
    ],
)
def test_no_recall_is_lost_under_a_filter(many, where, left):
    """Candidates are chosen among the pages that are left: what a scan of these alone finds is found."""
    search = PageSearch(many)
    assert search.scanner().candidates is not None
    live = search.scanner().live
    assert int((search.allowed(live, None, where) & live.allowed).sum()) == left
    queries = queries_of(12)
    quick = search.hits(queries, 10, where=where)
    exact = search.hits(queries, 10, exact=True, where=where)
    if left <= 120:  # all of them are scored
        assert quick == exact
    else:  # as without a filter, a candidate stage may miss a page that hardly matches: never the first ones
        assert [hits[0] for hits in quick] == [hits[0] for hits in exact]
    assert all(len(hits) == min(10, left) for hits in quick)


def test_names_of_a_server_are_not_those_of_the_machine(index):
    names = {version.source: f"public/{version.name}" for version in index._table.state.documents.values()}
    assert pages(index, Where("folder = 'public/reports/old'", names)) == [("b.pdf", 1), ("b.pdf", 2)]
    assert pages(index, Where("document like 'reports%'", names)) == []
    assert index.search("page 12", top=1, where=Where(None, names))[0].metadata["folder"] == "public/reports/old"


def test_a_filter_without_documents(tmp_path, reader):
    empty = Index.create(tmp_path / "my.index", reader, AnchorFold(ratio=0.5))
    assert empty.search("page 1", where="page = 1 or kind = 'pdf'") == []
    assert empty.facets() == []


def test_a_row_for_the_store_takes_metadata_along(tmp_path):
    table = PageTable.create(tmp_path / "my.index", index_settings())
    table.describe({}, {"year": "integer"})
    table.append([row(1, metadata=Metadata({"title": "T"}, {"year": 3}))])
    assert dict(PageTable.open(table.folder).state.metadata) == {1: Metadata({"title": "T"}, {"year": 3})}
