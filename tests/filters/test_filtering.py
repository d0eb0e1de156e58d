"""Searching an index under filters."""

import datetime
from dataclasses import replace

import numpy as np
import pytest
from fpdf import FPDF

from anchorfold import AnchorFold, Index
from anchorfold.errors import FilterError
from anchorfold.retrieval import candidate_files, scan, visual_search
from anchorfold.retrieval.candidate_files import update_lists
from anchorfold.storage.hits import SearchRequest
from tests.filters.sample_metadata import A_METADATA, matching_pages
from tests.number_reader import NumberReader, write_pdf
from tests.retrieval.test_candidates import DIM, page_row, queries_of
from tests.storage.page_rows import make_store


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
    assert matching_pages(index, where) == expected


def test_a_filter_and_documents_both_hold(index):
    assert matching_pages(index, "year > 2000", documents="*b.pdf") == [("b.pdf", 1), ("b.pdf", 2)]
    assert matching_pages(index, "year > 2023", documents="*b.pdf") == []


def test_hits_show_metadata_with_the_types_that_were_given(index):
    (hit,) = index.search("page 1", top_k=1, where="year = 2024")
    assert hit.metadata == {
        "folder": "reports", "kind": "pdf", "pages": 3, "modified": datetime.date(2023, 11, 14), "title": "a",
        **A_METADATA,
    }  # fmt: skip
    assert [type(hit.metadata[name]) for name in A_METADATA] == [int, str, bool, datetime.date, float]
    assert hash(hit) == hash(index.search("page 1", top_k=1)[0])
    assert Index.open(index.path, NumberReader()).search("page 1", top_k=1)[0].metadata == hit.metadata


def test_facets_are_columns_with_few_values(index):
    facets = {facet.column: facet for facet in index.facets()}
    assert list(facets) == ["due", "rate", "signed", "team", "year", "folder", "kind"]
    assert facets["team"].values == {"legal": 1, "sales": 1}
    assert facets["team"].missing == 1
    assert facets["kind"].values == {"pdf": 2, "png": 1}
    assert index.info().columns == index.columns()
    assert index.columns()["due"] == "date"


def test_a_wrong_filter_is_an_error_before_a_model_is_loaded(index, monkeypatch):
    monkeypatch.setattr(
        "anchorfold.indexes.index_model.IndexModel.encode_queries", lambda *_: pytest.fail("a model was loaded")
    )
    fresh = Index.open(index.path)
    with pytest.raises(FilterError, match="no column 'yaer'"):
        fresh.search("page 1", where="yaer = 1")


def test_title_author_and_language_are_read_from_a_pdf(tmp_path, reader):
    document = FPDF()
    document.set_lang("de-DE")
    document.set_title("Jahres\u00adbericht\n 2024 \U0001f4c8")
    document.set_author("Ada\x07 Ö.")
    document.add_page()
    document.output(str(tmp_path / "described.pdf"))
    write_pdf(tmp_path / "plain.pdf", [5])
    index = Index.create(tmp_path / "my.index", reader, AnchorFold(ratio=0.5))
    index.add([tmp_path / "described.pdf", tmp_path / "plain.pdf"])
    (hit,) = index.search("page 6", where="language = 'de-DE' and author = 'Ada Ö.'")
    assert hit.metadata["title"] == "Jahres bericht 2024 \U0001f4c8"
    assert len(index.search("page 6", where="title = 'plain' and author is null and language is null")) == 1
    index.set_metadata({"title": "Annual report"}, documents="*described.pdf")
    assert len(index.search("page 6", where="title = 'Annual report'")) == 1
    index.set_metadata({"title": None}, documents="*described.pdf")
    assert len(index.search("page 6", where="title ilike 'jahres%'")) == 1


def test_a_filter_without_documents(tmp_path, reader):
    empty = Index.create(tmp_path / "my.index", reader, AnchorFold(ratio=0.5))
    assert empty.search("page 1", where="page = 1 or kind = 'pdf'") == []
    assert empty.facets() == []


def test_clients_of_a_server_filter_by_public_names(tmp_path, reader):
    for folder in ("x", "y"):
        write_pdf(tmp_path / folder / "a.pdf", [12])
    index = Index.create(tmp_path / "my.index", reader, AnchorFold(ratio=0.5))
    index.add([tmp_path / "x/a.pdf", tmp_path / "y/a.pdf"])
    names = {hit.public_name: hit for hit in index.search("page 12")}
    assert set(names) == {"a.pdf", "y/a.pdf"}
    request = SearchRequest(["page 12"], public=True)
    ((hit,),) = index.run(replace(request, where="folder = 'y'"))
    assert (hit.public_name, hit.metadata["folder"]) == ("y/a.pdf", "y")
    assert [h.public_name for h in index.run(replace(request, documents="y/*"))[0]] == ["y/a.pdf"]
    assert index.run(replace(request, where=f"document like '{tmp_path}%'")) == [[]]
    assert index.search("page 12", where="folder = 'y'") == []
    assert [f.values for f in index.facets(public=True) if f.column == "folder"] == [{".": 1, "y": 1}]


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """1,500 pages of 50 documents, with a candidate stage."""
    patch = pytest.MonkeyPatch()
    patch.setattr(candidate_files, "FIRST_PAGES", 1000)
    patch.setattr(candidate_files, "LISTED_ROWS", 100)
    patch.setattr(scan, "CANDIDATES", 120)
    store = make_store(tmp_path_factory.mktemp("many") / "my.index", dim=DIM, bits=4)
    rng = np.random.default_rng(1)
    rows = [page_row(number, rng, f"/{number % 50}.pdf") for number in range(1, 1501)]
    values = {f"/{n}.pdf": {"n": n, "even": n % 2 == 0} for n in range(50)}
    with store.writing():
        for start in range(0, 1500, 500):
            store.append(rows[start : start + 500])
        store.set_metadata(values, {"n": "integer", "even": "boolean"})
        update_lists(store)
    yield store
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
    search = many.pages
    selection = SearchRequest(where=where)

    def remaining(snapshot, scanner):
        assert scanner.candidates is not None
        return int((search.allowed(snapshot, scanner.live, selection) & scanner.live.allowed).sum())

    assert search.with_scanner(remaining) == left
    queries = queries_of(12)
    quick = search.hits(replace(selection, vectors=queries, top_k=10))
    exact = search.hits(replace(selection, vectors=queries, top_k=10, exact=True))
    if left <= 120:  # all of them are scored
        assert quick == exact
    else:  # as without a filter, a candidate stage may miss a page that hardly matches, but not the first
        assert [hits[0] for hits in quick] == [hits[0] for hits in exact]
    assert all(len(hits) == min(10, left) for hits in quick)


def test_masks_of_filters_are_cached_per_commit(many):
    search = many.pages
    hits = search.hits(SearchRequest(vectors=queries_of(1), top_k=3, where="n = 7"))
    masks = dict(search._masks)
    assert search.hits(SearchRequest(vectors=queries_of(1), top_k=3, where="n = 7")) == hits
    assert search._masks == masks
    for n in range(30):
        search.hits(SearchRequest(vectors=queries_of(1), top_k=3, where=f"n = {n}"))
    assert len(search._masks) == visual_search.MASKS
