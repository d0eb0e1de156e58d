"""Metadata given by users: tables, mappings, functions; their types, and mistakes explained in one sentence."""

import datetime
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anchorfold.documents.files import matches
from anchorfold.errors import AnchorFoldError
from anchorfold.filters.metadata import KnownColumns, given_values
from anchorfold.filters.metadata_tables import Names, read_table

DOCUMENTS = {"/data/reports/a.pdf": "reports/a.pdf", "/data/reports/2024/b.pdf": "reports/2024/b.pdf", "/data/c.png": "c.png"}  # noqa: E501  # fmt: skip
A, B, C = DOCUMENTS


@pytest.fixture
def known():
    """One document has a year and a mark; no document has a rate any more."""
    users = {"year": {A}, "mark": {A}}
    return KnownColumns({"year": "integer", "mark": "text", "rate": "float"}, lambda column: users.get(column, set()))


def write_table(tmp_path, text, name="about.csv"):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return path


def test_a_column_of_a_table_has_one_type(tmp_path, known):
    table = write_table(
        tmp_path,
        "file,count,share,signed,when done,code,mixed,note\n"
        "reports/a.pdf,1,1,true,2024-01-31,007,1,\n"
        "reports/2024/b.pdf,-2,2.5,FALSE,2023-12-01,8,x,'quoted'\n",
    )
    given = given_values(table, DOCUMENTS, known)
    assert given.types == {
        "count": "integer", "share": "float", "signed": "boolean", "when done": "date", "code": "text", "mixed": "text",
        "note": "text",
    }  # fmt: skip
    assert given.values[A] == {
        "count": 1, "share": 1.0, "signed": True, "when done": "2024-01-31", "code": "007", "mixed": "1", "note": None,
    }  # fmt: skip
    assert [type(v) for v in given.values[B].values()] == [int, float, bool, str, str, str, str]


def test_filled_cells_of_later_rows_take_precedence(tmp_path, known):
    table = write_table(
        tmp_path, "path,year,team\nreports,2023,sales\n\n*.pdf,2024,\nb.pdf,,legal\nnobody.pdf,1,\n./c.png,,\n"
    )
    given = given_values(table, DOCUMENTS, known)
    assert given.values == {
        A: {"year": 2024, "team": "sales"},
        B: {"year": 2024, "team": "legal"},
        C: {"year": None, "team": None},
    }
    assert given.unmatched == ("nobody.pdf",)


@pytest.mark.parametrize(
    "text",
    [
        "path;cost (net, EUR)\nc.png;3\n",
        "path;cost (net, EUR)\nc.png;3,5\n",
        "path, as given;cost\nc.png;3\n",
        '"path";"cost (net, EUR)";"unit, name"\n"c.png";3;"a, b"\n',
        "sep=;\npath;cost\nc.png;3\n",
        "\npath;cost\nc.png;3\n",
    ],
)
def test_the_separator_is_detected_if_cells_contain_another(tmp_path, text):
    table = read_table(write_table(tmp_path, text))
    assert [row.documents for row in table.rows] == ["c.png"]
    assert table.columns[0].startswith("cost")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators_byte_order_marks_and_line_ends(tmp_path, known, separator):
    text = '\ufeffpath|Year|team\r\nc.png|2021|"a,b|c"\r\n'.replace("|", separator)
    given = given_values(write_table(tmp_path, text), DOCUMENTS, known)
    assert given.values[C]["year"] == 2021  # the column that is there, whatever its case
    assert given.values[C]["team"] == f"a,b{separator}c"


def test_tables_with_types(tmp_path, known):
    lines = (
        '{"path": "c.png", "rate": 1, "day": "2024-01-31", "code": "7"}\n{"path": "a.pdf", "rate": 2.5, "ok": true}\n'
    )
    given = given_values(write_table(tmp_path, lines, "about.jsonl"), DOCUMENTS, known)
    assert given.types == {"rate": "float", "day": "date", "code": "text", "ok": "boolean"}
    assert given.values[C] == {"rate": 1.0, "day": "2024-01-31", "code": "7", "ok": None}
    columns = {"path": ["c.png"], "day": [datetime.date(2024, 1, 31)], "n": pa.array([3], pa.int32()), "t": ["2024"]}
    pq.write_table(pa.table(columns), tmp_path / "about.parquet")
    given = given_values(tmp_path / "about.parquet", DOCUMENTS, known)
    assert given.types == {"day": "date", "n": "integer", "t": "text"}


def test_mappings_functions_and_numbers_of_numpy(known):
    given = given_values({"n": np.int64(3), "x": np.float32(0.5), "b": np.bool_(True)}, {A: "a.pdf"}, known)
    assert given.values == {A: {"n": 3, "x": 0.5, "b": True}}
    assert [type(value) for value in given.values[A].values()] == [int, float, bool]
    given = given_values(
        lambda path: {"folder name": path.parent.name} if path.suffix == ".pdf" else None, DOCUMENTS, known
    )
    assert given.values == {A: {"folder name": "reports"}, B: {"folder name": "2024"}}
    assert given_values({"rate": 3}, {A: "a.pdf"}, known).values == {A: {"rate": 3.0}}


def test_users_may_override_metadata_of_the_file(known):
    given = given_values({"Title": "Another", "language": "de"}, {A: "a.pdf"}, known)
    assert given.values == {A: {"title": "Another", "language": "de"}}


def test_a_type_changes_when_no_document_has_a_value_of_the_old_one(tmp_path, known):
    assert given_values({"year": "MMXX"}, {A: "a.pdf"}, known).types == {"year": "text"}
    with pytest.raises(AnchorFoldError, match="year is an integer in this index"):
        given_values({"year": "MMXX"}, {B: "b.pdf"}, known)
    assert given_values({"rate": "high"}, {B: "b.pdf"}, known).types == {"rate": "text"}
    # Cells of a CSV file have no type of their own: one that the index has counts.
    assert given_values(write_table(tmp_path, "p,mark\nb.pdf,7\n"), DOCUMENTS, known).values == {B: {"mark": "7"}}


WRONG_TABLES = {
    "": "is empty", "path,year\n": "has no rows", "path\na.pdf\n": "one column",
    "path,year,year\na.pdf,1,2\n": "column 'year' occurs twice",
    "path,Team,team\na.pdf,1,2\n": "names are case-insensitive", "path,page\na.pdf,1\n": "reserved column",
    "path,score\na.pdf,1\n": "reserved column", "path,n\na.pdf,1,2,3\n": "line 2: 4 cells, but 2 columns",
    "path,n\n,1\n": "line 2: the first cell", "path,\na.pdf,1\n": "invalid column name",
    "path,year\nc.png,2021\nb.pdf,soon\n": "line 3: year is an integer in this index (such as 2024), got 'soon'",
    "path,title\na.pdf,1\nb.pdf,\"x": "line 3",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG_TABLES)
def test_a_wrong_table_is_explained_in_one_sentence(tmp_path, known, text):
    with pytest.raises(AnchorFoldError) as error:
        given_values(write_table(tmp_path, text), DOCUMENTS, known)
    assert WRONG_TABLES[text] in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("about.xlsx", b"", "not a supported table"), ("about.csv", b"path,\xff\n", "UTF-8"),
        ("about.jsonl", b"{", "line 1: invalid JSON"), ("about.jsonl", b"[1]", "not an object"),
        ("about.jsonl", b'{"path": 3, "n": 1}', "line 1: the first cell"), ("about.jsonl", b"\n", "is empty"),
        ("about.jsonl", b'{"path": "a.pdf", "n": [1]}', "none of text"),
        ("about.jsonl", b'{"path": "a.pdf"}', "one column"),
        ("about.jsonl", b'{"p": "a.pdf", "n": 1}\n{"p": "c.png", "n": "x"}', "use one type per column"),
        ("about.parquet", b"no", "cannot be read"), ("missing.csv", None, "no such file"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_explained_in_one_sentence(tmp_path, known, name, content, expected):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(AnchorFoldError, match=expected) as error:
        given_values(tmp_path / name, DOCUMENTS, known)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"n": float("nan")}, "is not a finite number"), ({"n": 2**63}, "64 bits"), ({"n": [1]}, "none of text"),
        ({"n": datetime.datetime(2024, 1, 1)}, "time of day"), ({"n": "x" * 10_001}, "longer than"),
        ({"n": "\ud800"}, "contains surrogates"), ({"": 1}, "invalid column name"),
        ({3: 1}, "invalid column name"), ({"a\nb": 1}, "invalid column name"),
        ({"x" * 65: 1}, "invalid column name"), ({"kind": "x"}, "reserved column"), ({"title": 3}, "title is text"),
        (lambda path: 3, "expected a mapping"), (3, "a mapping of column to value"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_explained_in_one_sentence(known, metadata, expected):
    with pytest.raises(AnchorFoldError, match=expected):
        given_values(metadata, DOCUMENTS, known)


def test_rows_refer_to_the_documents_that_names_refer_to_elsewhere(tmp_path, monkeypatch):
    (tmp_path / "data/reports").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "data")
    root = str(tmp_path / "data")
    documents = {
        f"{root}/reports/a.pdf": "reports/a.pdf", f"{root}/reports/a[1].pdf": "reports/a[1].pdf",
        f"{root}/c.png": "c.png", f"{root}/reports2/é.pdf": "../data/reports2/é.pdf",
    }  # fmt: skip
    names = Names(documents, tmp_path / "data")
    for wanted in [
        "reports/a.pdf", "a.pdf", "reports", "./reports/", "*.pdf", "reports/*", "c.png", "nothing", f"{root}/reports",
        f"{root}/c.png", "a[1].pdf", "reports/a[1].pdf", "reports2", "e\u0301.pdf", "?.png", "../data/c.png", "rep",
    ]:  # fmt: skip
        expected = {source for source, name in documents.items() if matches(wanted, name, source)}
        assert names.matching(wanted) == expected, wanted
    below = Names(documents, tmp_path / "data" / "reports")  # a table beside the documents
    assert below.matching("a.pdf") == {f"{root}/reports/a.pdf"}
    assert below.matching("../reports2/*") == {f"{root}/reports2/é.pdf"}
    assert os.getcwd() == root
