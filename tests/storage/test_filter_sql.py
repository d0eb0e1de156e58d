"""Filters compiled to SQLite: the same truth values as plain Python, and protection against slow or deep ones."""

import datetime
import json
import sqlite3
import time
from typing import Any

import pytest
from hypothesis import given, settings

from anchorfold.errors import DamagedError, FilterError
from anchorfold.filters.where import parse_where
from anchorfold.retrieval.derived import check_where
from anchorfold.storage.filter_sql import compile_filter, protected
from anchorfold.storage.hits import SearchRequest
from tests.filters.evaluator import evaluate
from tests.filters.expressions import EXPRESSIONS, ROWS, TYPES
from tests.storage.page_rows import SOURCE, make_store, page_row

ALL = {name: kind for name, kind in TYPES.items() if name not in ("title", "pages")}


def matching_rows(where, rows):
    """Numbers of rows for which a filter holds in SQLite; columns of files and of users are stored as in an index."""
    with sqlite3.connect(":memory:", isolation_level=None) as connection:
        connection.execute("CREATE TABLE live_documents (version_id, pages, metadata, file_metadata)")
        for number, row in enumerate(rows):
            metadata = {name: row[name] for name in ALL if row[name] is not None}
            titles = {} if row["title"] is None else {"title": row["title"]}
            by_user = number % 2 == 0  # or read from the file
            given_values, file_values = ({**metadata, **titles}, {}) if by_user else (metadata, titles)
            stored = (number, row["pages"], json.dumps(given_values), json.dumps(file_values))
            connection.execute("INSERT INTO live_documents VALUES (?, ?, ?, ?)", stored)
        condition = compile_filter(parse_where(where, TYPES), public=False)
        query = f"SELECT version_id FROM live_documents WHERE {condition.sql} ORDER BY version_id"
        with protected(connection):
            matches = [number for (number,) in connection.execute(query, condition.parameters)]
    connection.close()
    return matches


@settings(max_examples=400, deadline=None)
@given(EXPRESSIONS, ROWS)
def test_a_filter_has_the_truth_values_of_plain_python(where, rows):
    parsed = parse_where(where, TYPES)
    expected = [number for number, row in enumerate(rows) if evaluate(parsed, row) is True]
    assert matching_rows(where, rows) == expected


SALES = {"name": "sales", "title": None, "year": 2024, "pages": 2, "price": 1.0, "signed": True, "day": "2024-05-01"}
LEGAL = {"name": "it's", "title": None, "year": 2023, "pages": 2, "price": 2.5, "signed": False, "day": "2023-05-01"}
EMPTY = {"name": None, "title": None, "year": None, "pages": 1, "price": None, "signed": None, "day": None}


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("year = 2024", [0]),
        ("not year = 2024", [1]),  # a missing year is not another one
        ("year = 2024 or year is null", [0, 2]),
        ("YEAR = 2024", [0]),
        ('"year" = 2024', [0]),
        ("year = 2024 -- and nothing else", [0]),
        ("name ilike 'SA%'", [0]),
        ("name like 'SA%'", []),
        ("name not ilike 'sa%'", [1]),
        ("name = 'it''s'", [1]),
        ("day >= date '2024-01-01'", [0]),
        ("day between '2023-01-01' and '2023-12-31'", [1]),
        ("year > -5", [0, 1]),
        ("year = 2.024e3", [0]),
        ("year < 99999999999999999999", [0, 1]),
        (f"year < {'9' * 400} and year > -{'9' * 400}", [0, 1]),
        ("year in (99999999999999999999, 2023)", [1]),
        ("price < 1e999", [0, 1]),
        ("signed and not signed", []),
        ("signed is not true", [1, 2]),
        ("signed is false or signed is null", [1, 2]),
        ("not (signed and year = 2024)", [1]),
        ("signed or year is null", [0, 2]),
    ],
)
def test_the_meaning_of_filters(where, expected):
    assert matching_rows(where, [SALES, LEGAL, EMPTY]) == expected


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    rows = [
        page_row(p, source=f"/data/{name}", document=name, pages=2, modified=modified, file_metadata=known)
        for p in (1, 2)
        for name, modified, known in (
            ("reports/a.pdf", 1_700_000_000 * 10**9, {"title": "From the file", "author": "Ada"}),
            ("b.PNG", 0, {}),
        )
    ]
    store = make_store(tmp_path_factory.mktemp("filters") / "my.index", rows)
    with store.writing():
        values: dict[str, Any] = {
            'with "quotes"': 1,
            "back\\slash": 2,
            "dotted.name": 3,
            "$[0]": 4,
            "ünï": 5,
            "title": "Given",
        }
        store.set_metadata({"/data/b.PNG": values}, dict.fromkeys(values, "integer") | {"title": "text"})
    return store


def matches(store, where):
    query = page_row(1).encoded.vectors
    return sorted(
        (hit.document, hit.page) for hit in store.search_visual(SearchRequest(vectors=[query], top_k=9, where=where))[0]
    )


@pytest.mark.parametrize(
    "where",
    [
        '"with ""quotes""" = 1', '"back\\slash" = 2', '"dotted.name" = 3', '"$[0]" = 4', '"ünï" = 5', "title = 'Given'",
        "kind = 'png'", "folder = '.'", "modified is null", "author is null", "document = 'b.PNG'",
    ],
)  # fmt: skip
def test_columns_of_any_name_and_built_in_ones(store, where):
    assert matches(store, where) == [("b.PNG", 1), ("b.PNG", 2)]
    assert matches(store, f"({where}) and page = 2") == [("b.PNG", 2)]


def test_values_of_files_are_replaced_by_those_of_users(store):
    assert matches(store, "title = 'From the file' and author = 'Ada'") == [("reports/a.pdf", 1), ("reports/a.pdf", 2)]
    assert matches(store, "modified = '2023-11-14' and page = pages") == [("reports/a.pdf", 2)]
    ((hit, *_),) = store.search_visual(
        SearchRequest(vectors=[page_row(1).encoded.vectors], top_k=1, where="kind = 'pdf'")
    )
    assert hit.metadata == {
        "folder": "reports", "kind": "pdf", "pages": 2, "modified": datetime.date(2023, 11, 14),
        "title": "From the file", "author": "Ada",
    }  # fmt: skip


def test_an_empty_value_of_a_user_replaces_that_of_the_file(tmp_path):
    store = make_store(tmp_path / "my.index", [page_row(1, file_metadata={"title": "From the file"})])
    with store.writing():
        store.set_metadata({SOURCE: {"title": ""}}, {"title": "text"})
    assert matches(store, "title = ''") == [("b.pdf", 1)]
    ((hit,),) = store.search_visual(SearchRequest(vectors=[page_row(1).encoded.vectors], top_k=1))
    assert hit.metadata["title"] == ""


@pytest.mark.parametrize("depth", [50, 100])
def test_a_filter_that_is_nested_too_deeply_is_not_called_damage(store, depth):
    nested = "not " * depth + "(page = 1)"
    for search in (lambda: matches(store, nested), lambda: check_where(store, "(" * 900 + "x" + ")" * 900)):
        try:
            search()
        except FilterError as error:
            assert str(error) == "the filter is nested too deeply."  # noqa: PT017


def test_a_filter_has_limited_time(store):
    def slow(snapshot):
        condition = compile_filter(parse_where("document like '%a%'", snapshot.columns), public=False)
        many = ", ".join(["live_pages"] + [f"live_pages AS p{n}" for n in range(20)])
        query = f"SELECT count(*) FROM {many} WHERE {condition.sql.replace('document', 'live_pages.document')}"
        with protected(snapshot.connection, seconds=0.2):
            return snapshot.connection.execute(query, condition.parameters).fetchone()

    began = time.monotonic()
    with pytest.raises(FilterError, match=r"the filter took longer than 0\.2 seconds: use a simpler one"):
        store.read(slow)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT text FROM texts", "SELECT settings FROM index_info", "DELETE FROM pages", "PRAGMA user_version",
        "ATTACH 'x.db' AS x", "SELECT load_extension('x')", "SELECT name FROM sqlite_master",
        "SELECT rowid FROM text_index",
    ],
)  # fmt: skip
def test_filters_read_documents_and_pages_alone(store, statement):
    def read(snapshot):
        with (
            protected(snapshot.connection),
            pytest.raises(sqlite3.DatabaseError, match=r"prohibited|not authorized|failed"),
        ):
            snapshot.connection.execute(statement).fetchall()
        return snapshot.connection.execute("SELECT count(*) FROM texts").fetchone()

    assert store.read(read) == (0,)  # the protection ends with the block


@pytest.mark.parametrize("options", [{"where": "year = 2024"}, {"where": "page = 1"}, {"documents": "*.pdf"}])
def test_rows_that_a_filter_reads_are_verified(tmp_path, options):
    store = make_store(tmp_path / "my.index", [page_row(1)])
    with store.writing():
        store.set_metadata({SOURCE: {"year": 2024}}, {"year": "integer"})
    connection = store.database.connect(check=False)
    connection.execute("UPDATE documents SET metadata = '{\"year\": 2025}'")
    connection.close()
    request = SearchRequest(vectors=[page_row(1).encoded.vectors], **options)
    with pytest.raises(DamagedError, match="row 1 of documents does not match its checksum"):
        store.search_visual(request)


def test_a_wrong_filter_is_an_error_before_anything_is_searched(store):
    with pytest.raises(FilterError, match=r"there is no column 'yaer': the columns are document \(text\)"):
        check_where(store, "yaer = 1")
    with pytest.raises(FilterError, match="no column 'yaer'"):
        matches(store, "yaer = 1")
