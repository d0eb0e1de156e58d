"""Parsing of filters: every condition that is refused is explained in one sentence."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfold.errors import FilterError
from anchorfold.filters.where import parse_where
from anchorfold.storage.filter_sql import like_matches
from tests.filters.evaluator import evaluate
from tests.filters.expressions import EXPRESSIONS, TYPES


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS)
def test_the_columns_of_a_filter(where):
    parsed = parse_where(where, TYPES)
    used = set(parsed.columns())
    assert used <= TYPES.keys()
    evaluate(parsed, dict.fromkeys(used))  # no other column is read


UNSUPPORTED, NOT_SQL = "is not supported in a filter", "not an SQL condition"
WRONG = {
    "": "empty", "  ": "empty", "x" * 2001: "longer than", "yaer = 1": "no column 'yaer': the columns are name (text)",
    "year >= 'x'": "cannot compare integer column 'year' with 'x'",
    "name = 3": "cannot compare text column 'name' with 3",
    "price = true": "cannot compare float column 'price' with TRUE",
    "signed > true": "no order", "signed = 1": "cannot compare boolean column 'signed'", "day > '2024'": "'2024-01-31'",
    "day > 2024": "cannot compare date column 'day'",
    "day = date '2024-13-01'": "not a date", "year": "not a condition",
    "year = null": "is null", "year in (1, null)": "is null", "year in ()": "is empty",
    "year like '2%'": "like requires a text column", "name like 3": "single quotes", "name like name": "single quotes",
    "year is 3": "`is` requires", "year is true": "`is` requires",
    "year = name": "cannot compare integer column 'year' with text column 'name'", 'name = "sales"': "'sales'",
    "upper(name) = 'X'": UNSUPPORTED, "year + 1 = 2": UNSUPPORTED, "1 = 1": UNSUPPORTED,
    "true": UNSUPPORTED, "null": UNSUPPORTED, "*": UNSUPPORTED, "name": "not a condition",
    "name || name = 'x'": UNSUPPORTED, "t.name = 'x'": UNSUPPORTED,
    "year between symmetric 2 and 1": UNSUPPORTED, "name like 'a' escape '!'": UNSUPPORTED,
    "name like any ('a', 'b')": "single quotes", "name similar to 'a'": UNSUPPORTED,
    "name regexp 'a'": UNSUPPORTED, "case when signed then signed end": UNSUPPORTED,
    "year is distinct from pages": UNSUPPORTED, "year <=> 1": UNSUPPORTED, "year = ?": UNSUPPORTED,
    "year = :x": UNSUPPORTED, "year[0] = 1": UNSUPPORTED, "year::text = 'x'": UNSUPPORTED,
    "exists (select 1)": UNSUPPORTED, "year in (select 1)": UNSUPPORTED, "if = 1": UNSUPPORTED,
    "year = (select max(year) from t)": UNSUPPORTED, "year = 1; drop table t": NOT_SQL,
    "signed; signed": UNSUPPORTED, "year = 1 union select 1": NOT_SQL,
    "select 1": NOT_SQL, "year = 1 and": NOT_SQL, "(year = 1": NOT_SQL,
    "year = 'a": NOT_SQL, "1 < year < 3": UNSUPPORTED, "year = 0x10": NOT_SQL,
    "not": NOT_SQL, "year = -'x'": UNSUPPORTED, "name = 'x' 'y'": UNSUPPORTED,
    "(" * 900 + "signed" + ")" * 900: "nested too deeply", "not " * 490 + "signed": "nested too deeply",
    "name = load_extension('x')": UNSUPPORTED, "name = '' or 1=1 --": UNSUPPORTED,
    "name = ''; attach database 'x' as y": NOT_SQL, "name = 'x\0y' and": NOT_SQL,
    "name = @@version": UNSUPPORTED, "year > all (select 1)": UNSUPPORTED,
}  # fmt: skip


@pytest.mark.parametrize("where", WRONG, ids=lambda where: where[:40])
def test_a_wrong_filter_is_explained_in_one_sentence(where):
    with pytest.raises(FilterError) as error:
        parse_where(where, TYPES)
    sentence = str(error.value)
    assert WRONG[where] in sentence
    assert "\n" not in sentence
    assert "\x1b" not in sentence
    assert len(sentence) < 500


PIECES = [
    "name", "year", "signed", "'", '"', "(", ")", "=", "<", "and", "or", "not", "in", "like", "is", "null", ";", "--",
    "/*", "select", "1", "''", "between", ".", ",", "case", "date", "cast", "::", "%", "\\", "$", "{", "}", "[", "]",
    "exists", "@",
]  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=14).map(" ".join))
def test_any_text_is_a_filter_or_an_error(where):
    try:
        parse_where(where, TYPES)
    except FilterError as error:
        assert str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("%rep_rt%24", "annual report 2024", True), ("a", "a", True), ("a", "A", False), ("", "", True),
        ("", "a", False), ("%", "", True), ("_", "", False), ("_%_", "a", False), ("_%_", "ab", True),
        ("a%a", "a", False), (".*", "xx", False),
        ("%b", "a\nb", True), ("a_b", "a\nb", True), ("%aab", "aaab", True), ("100%", "100", True),
    ],
)  # fmt: skip
def test_patterns(pattern, text, expected):
    assert like_matches(text, pattern) == expected


def test_a_pattern_with_many_wildcards_takes_linear_time():
    hard = "%a" * 60 + "b"
    began = time.process_time()
    assert not like_matches("a" * 10_000, hard)
    assert like_matches("a" * 10_000 + "b", hard)
    assert time.process_time() - began < 20  # a backtracking matcher would not finish
