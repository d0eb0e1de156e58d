"""Parsing of filters: every condition that is refused is explained in one sentence."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfold.errors import FilterError
from anchorfold.index.filters.conditions import columns_of, like_matches
from anchorfold.index.filters.where import parse_where
from tests.index.filters.evaluator import evaluate
from tests.index.filters.expressions import EXPRESSIONS, TYPES


@settings(max_examples=100, deadline=None)
@given(EXPRESSIONS)
def test_the_columns_of_a_filter(where):
    parsed = parse_where(where, TYPES)
    used = set(columns_of(parsed))
    assert used <= TYPES.keys()
    evaluate(parsed, dict.fromkeys(used))  # no other column is read


WRONG = {
    "": "empty", "  ": "empty", "x" * 2001: "longer than", "yaer = 1": "no column 'yaer': there are name (text)",
    "year >= 'x'": "year is an integer", "name = 3": "name is text", "price = true": "price is a float",
    "signed > true": "no order", "signed = 1": "signed is a boolean", "day > '2024'": "'2024-01-31'",
    "day > 2024": "day is a date", "day = date '2024-13-01'": "no date", "year": "stands alone",
    "year = null": "is null", "year in (1, null)": "is null", "year in ()": "at least one",
    "year like '2%'": "like is for text", "name like 3": "single quotes", "name like name": "single quotes",
    "year is 3": "after is", "year is true": "after is", "year = name": "do not compare", 'name = "sales"': "'sales'",
    "upper(name) = 'X'": "cannot stand there", "year + 1 = 2": "cannot stand there", "1 = 1": "cannot stand there",
    "true": "cannot stand there", "null": "cannot stand there", "*": "cannot stand there", "name": "stands alone",
    "name || name = 'x'": "cannot stand there", "t.name = 'x'": "cannot stand there",
    "year between symmetric 2 and 1": "cannot stand there", "name like 'a' escape '!'": "cannot stand there",
    "name like any ('a', 'b')": "single quotes", "name similar to 'a'": "cannot stand there",
    "name regexp 'a'": "cannot stand there", "case when signed then signed end": "cannot stand there",
    "year is distinct from pages": "cannot stand there", "year <=> 1": "cannot stand there", "year = ?": "cannot stand",
    "year = :x": "cannot stand there", "year[0] = 1": "cannot stand there", "year::text = 'x'": "cannot stand there",
    "exists (select 1)": "cannot stand there", "year in (select 1)": "cannot stand there", "if = 1": "cannot stand",
    "year = (select max(year) from t)": "cannot stand there", "year = 1; drop table t": "no SQL condition",
    "signed; signed": "cannot stand there", "year = 1 union select 1": "no SQL condition",
    "select 1": "no SQL condition", "year = 1 and": "no SQL condition", "(year = 1": "no SQL condition",
    "year = 'a": "no SQL condition", "1 < year < 3": "cannot stand there", "year = 0x10": "no SQL condition",
    "not": "no SQL condition", "year = -'x'": "cannot stand there", "name = 'x' 'y'": "cannot stand there",
    "(" * 900 + "signed" + ")" * 900: "nested too deeply", "not " * 490 + "signed": "nested too deeply",
    "name = load_extension('x')": "cannot stand there", "name = '' or 1=1 --": "cannot stand there",
    "name = ''; attach database 'x' as y": "no SQL condition", "name = 'x\0y' and": "no SQL condition",
    "name = @@version": "cannot stand there", "year > all (select 1)": "cannot stand there",
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
    assert like_matches(pattern, text) == expected


def test_a_pattern_with_many_wildcards_takes_linear_time():
    hard = "%a" * 60 + "b"
    began = time.process_time()
    assert not like_matches(hard, "a" * 10_000)
    assert like_matches(hard, "a" * 10_000 + "b")
    assert time.process_time() - began < 20  # a backtracking matcher would not finish
