"""Types of columns: what a value may be, and what a whole column of texts is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import date, datetime
from typing import Any

from anchorfold.index.store.records import Plain

TEXT, INTEGER, FLOAT, BOOLEAN, DATE = "text", "integer", "float", "boolean", "date"
EXAMPLES = {TEXT: "'sales'", INTEGER: "2024", FLOAT: "0.5", BOOLEAN: "true", DATE: "'2024-01-31'"}
ARTICLES = {TEXT: "text", INTEGER: "an integer", FLOAT: "a float", BOOLEAN: "a boolean", DATE: "a date"}
NUMBERS = (INTEGER, FLOAT)
MAX_TEXT = 10_000
Value = str | int | float | bool | date

_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")  # 007 is a name
_FLOAT = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def type_of(value: object) -> str:
    """The type of a value; ValueError with what is wrong if it can be none.

    >>> type_of(2024), type_of(True), type_of("2024")
    ('integer', 'boolean', 'text')
    """
    match value:
        case bool():
            return BOOLEAN
        case int():
            if not -(2**63) <= value < 2**63:
                raise ValueError("is larger than 64 bits hold")
            return INTEGER
        case float():
            if not math.isfinite(value):
                raise ValueError("is no number")
            return FLOAT
        case datetime():
            raise ValueError("has a time of day: give a date, or text")
        case date():
            return DATE
        case str():
            if len(value) > MAX_TEXT:
                raise ValueError(f"is longer than {MAX_TEXT:,} characters")
            if any("\ud800" <= c <= "\udfff" for c in value):
                raise ValueError("is no valid text")
            return TEXT
    raise ValueError("is none of text, integer, float, boolean and date")


def unboxed(value: Any) -> Any:
    """A number of NumPy as Python's own."""
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value


def common_type(types: Iterable[str]) -> str | None:
    """What a column of values of these types is; None if there is no such type.

    >>> common_type(["integer", "float"]), common_type(["integer", "text"])
    ('float', None)
    """
    distinct = set(types)
    if distinct == set(NUMBERS):
        return FLOAT
    return distinct.pop() if len(distinct) == 1 else None


def fits(kind: str, column: str) -> bool:
    """Whether values of a type go into a column of another: integers are floats as well."""
    return kind == column or (kind, column) == (INTEGER, FLOAT)


def plain(value: Value, column: str) -> Plain:
    """A value that fits as the log keeps it."""
    return float(value) if column == FLOAT and not isinstance(value, date) else as_json(value)


def shown(stored: Plain, column: str) -> Value:
    """A stored value as Python has it.

    >>> shown("2024-01-31", "date")
    datetime.date(2024, 1, 31)
    """
    return date.fromisoformat(str(stored)) if column == DATE else stored


def as_json(value: Value) -> Plain:
    """A value for JSON: a date becomes ISO text."""
    return value.isoformat() if isinstance(value, date) else value


def read_date(text: str) -> date | None:
    """A date as 2024-01-31; None if it is none."""
    try:
        return date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def column_type(cells: Iterable[str]) -> str:
    """The type of a whole column of texts, none of them empty.

    >>> column_type(["1", "2.5"]), column_type(["007", "8"]), column_type(["2024-01-31"]), column_type(["true", "no"])
    ('float', 'text', 'date', 'text')
    """
    texts = list(cells)
    for kind in (INTEGER, FLOAT, BOOLEAN, DATE):
        if texts and all(read_cell(text, kind) is not None for text in texts):
            return kind
    return TEXT


def read_cell(text: str, kind: str) -> Value | None:
    """A text as a value of a type; None if it is none."""
    if kind == INTEGER:
        return int(text) if _INTEGER.fullmatch(text) and -(2**63) <= int(text) < 2**63 else None
    if kind == FLOAT:
        return float(text) if _FLOAT.fullmatch(text) and math.isfinite(float(text)) else None
    if kind == BOOLEAN:
        return {"true": True, "false": False}.get(text.lower())
    return read_date(text) if kind == DATE else text
