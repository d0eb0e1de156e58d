"""What people say of documents: tables, mappings, functions; types that are kept, and slips in one sentence."""

import datetime
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anchorfold.documents.files import matches
from anchorfold.errors import AnchorFoldError
from anchorfold.index.filters.given import given_values
from anchorfold.index.filters.tables import Names, read_table
from anchorfold.index.store.catalogue import Document, Patch, State
from anchorfold.index.store.metadata import Metadata
from tests.number_reader import index_settings

DOCUMENTS = {"/data/reports/a.pdf": "reports/a.pdf", "/data/reports/2024/b.pdf": "reports/2024/b.pdf", "/data/c.png": "c.png"}  # noqa: E501  # fmt: skip
A, B, C = DOCUMENTS


@pytest.fixture
def state():
    """One document has a year, which is an integer, and a title of its own."""
    document = Document(A, "reports/a.pdf", "d", 1, 1, 1, True)
    metadata = Metadata({"title": "From the file"}, {"year": 2020, "mark": "x"})
    empty = State(1, index_settings())
    return empty.patched(
        Patch({1: document}, {}, {}, {1: metadata}, {"year": "integer", "mark": "text", "rate": "float"})
    )


def written(tmp_path, text, name="about.csv"):
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return path


def test_types_of_a_table_are_those_of_whole_columns(tmp_path, state):
    table = written(
        tmp_path,
        "file,count,share,signed,when done,code,mixed,note\n"
        "reports/a.pdf,1,1,true,2024-01-31,007,1,\n"
        "reports/2024/b.pdf,-2,2.5,FALSE,2023-12-01,8,x,'quoted'\n",
    )
    given = given_values(table, DOCUMENTS, state)
    assert given.types == {
        "count": "integer", "share": "float", "signed": "boolean", "when done": "date", "code": "text", "mixed": "text",
        "note": "text",
    }  # fmt: skip
    assert given.values[A] == {
        "count": 1, "share": 1.0, "signed": True, "when done": "2024-01-31", "code": "007", "mixed": "1", "note": None,
    }  # fmt: skip
    assert [type(v) for v in given.values[B].values()] == [int, float, bool, str, str, str, str]


def test_later_rows_win_where_they_say_something(tmp_path, state):
    table = written(
        tmp_path, "path,year,team\nreports,2023,sales\n\n*.pdf,2024,\nb.pdf,,legal\nnobody.pdf,1,\n./c.png,,\n"
    )
    given = given_values(table, DOCUMENTS, state)
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
def test_the_separator_is_found_also_if_cells_contain_another(tmp_path, text):
    table = read_table(written(tmp_path, text))
    assert [row.documents for row in table.rows] == ["c.png"]
    assert table.columns[0].startswith("cost")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators_marks_and_line_ends(tmp_path, state, separator):
    text = '\ufeffpath|Year|team\r\nc.png|2021|"a,b|c"\r\n'.replace("|", separator)
    given = given_values(written(tmp_path, text), DOCUMENTS, state)
    assert given.values[C]["year"] == 2021  # the column that is there, whatever its case
    assert given.values[C]["team"] == f"a,b{separator}c"


def test_tables_with_types(tmp_path, state):
    lines = (
        '{"path": "c.png", "rate": 1, "day": "2024-01-31", "code": "7"}\n{"path": "a.pdf", "rate": 2.5, "ok": true}\n'
    )
    given = given_values(written(tmp_path, lines, "about.jsonl"), DOCUMENTS, state)
    assert given.types == {"rate": "float", "day": "date", "code": "text", "ok": "boolean"}
    assert given.values[C] == {"rate": 1.0, "day": "2024-01-31", "code": "7", "ok": None}
    columns = {"path": ["c.png"], "day": [datetime.date(2024, 1, 31)], "n": pa.array([3], pa.int32()), "t": ["2024"]}
    pq.write_table(pa.table(columns), tmp_path / "about.parquet")
    given = given_values(tmp_path / "about.parquet", DOCUMENTS, state)
    assert given.types == {"day": "date", "n": "integer", "t": "text"}


def test_mappings_functions_and_numbers_of_numpy(state):
    given = given_values({"n": np.int64(3), "x": np.float32(0.5), "b": np.bool_(True)}, {A: "a.pdf"}, state)
    assert given.values == {A: {"n": 3, "x": 0.5, "b": True}}
    assert [type(value) for value in given.values[A].values()] == [int, float, bool]
    given = given_values(
        lambda path: {"folder name": path.parent.name} if path.suffix == ".pdf" else None, DOCUMENTS, state
    )
    assert given.values == {A: {"folder name": "reports"}, B: {"folder name": "2024"}}
    assert given_values({"rate": 3}, {A: "a.pdf"}, state).values == {A: {"rate": 3.0}}


def test_people_may_correct_what_the_file_says(state):
    given = given_values({"Title": "Another", "language": "de"}, {A: "a.pdf"}, state)
    assert given.values == {A: {"title": "Another", "language": "de"}}


def test_a_type_changes_when_nobody_has_a_value_of_the_old_one(tmp_path, state):
    assert given_values({"year": "MMXX"}, {A: "a.pdf"}, state).types == {"year": "text"}
    with pytest.raises(AnchorFoldError, match="year is an integer in this index"):
        given_values({"year": "MMXX"}, {B: "b.pdf"}, state)
    assert given_values({"rate": "high"}, {B: "b.pdf"}, state).types == {"rate": "text"}
    # Cells of a CSV file have no type of their own: one that the index has counts.
    assert given_values(written(tmp_path, "p,mark\nb.pdf,7\n"), DOCUMENTS, state).values == {B: {"mark": "7"}}


WRONG_TABLES = {
    "": "is empty", "path\na.pdf\n": "one column", "path,year,year\na.pdf,1,2\n": "two columns are called 'year'",
    "path,Team,team\na.pdf,1,2\n": "case does not count", "path,page\na.pdf,1\n": "another name",
    "path,score\na.pdf,1\n": "another name", "path,n\na.pdf,1,2,3\n": "line 2: 4 cells below 2 columns",
    "path,n\n,1\n": "line 2: the first cell", "path,\na.pdf,1\n": "no name of a column",
    "path,year\nc.png,2021\nb.pdf,soon\n": "line 3: year is an integer in this index (such as 2024), got 'soon'",
    "path,title\na.pdf,1\nb.pdf,\"x": "line 3",
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG_TABLES)
def test_a_wrong_table_is_one_sentence(tmp_path, state, text):
    with pytest.raises(AnchorFoldError) as error:
        given_values(written(tmp_path, text), DOCUMENTS, state)
    assert WRONG_TABLES[text] in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("about.xlsx", b"", "not a table of a known kind"), ("about.csv", b"path,\xff\n", "UTF-8"),
        ("about.jsonl", b"{", "line 1: no JSON"), ("about.jsonl", b"[1]", "not an object"),
        ("about.jsonl", b'{"path": 3, "n": 1}', "line 1: the first cell"), ("about.jsonl", b"\n", "is empty"),
        ("about.jsonl", b'{"path": "a.pdf", "n": [1]}', "none of text"),
        ("about.jsonl", b'{"path": "a.pdf"}', "one column"),
        ("about.jsonl", b'{"p": "a.pdf", "n": 1}\n{"p": "c.png", "n": "x"}', "a column has one type"),
        ("about.parquet", b"no", "cannot be read"), ("missing.csv", None, "no such file"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_one_sentence(tmp_path, state, name, content, expected):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(AnchorFoldError, match=expected) as error:
        given_values(tmp_path / name, DOCUMENTS, state)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"n": float("nan")}, "is no number"), ({"n": 2**63}, "64 bits"), ({"n": [1]}, "none of text"),
        ({"n": datetime.datetime(2024, 1, 1)}, "time of day"), ({"n": "x" * 10_001}, "longer than"),
        ({"n": "\ud800"}, "no valid text"), ({"": 1}, "no name"), ({3: 1}, "no name"), ({"a\nb": 1}, "no name"),
        ({"x" * 65: 1}, "no name"), ({"kind": "x"}, "another name"), ({"title": 3}, "title is text"),
        (lambda path: 3, "no mapping"), (3, "a mapping of column to value"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_one_sentence(state, metadata, expected):
    with pytest.raises(AnchorFoldError, match=expected):
        given_values(metadata, DOCUMENTS, state)


def test_rows_mean_the_documents_that_names_mean_elsewhere(tmp_path, monkeypatch):
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
