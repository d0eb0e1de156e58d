"""Types of metadata values and of columns."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import date, datetime
from typing import Any

TEXT, INTEGER, FLOAT, BOOLEAN, DATE = "text", "integer", "float", "boolean", "date"
EXAMPLES = {TEXT: "'sales'", INTEGER: "2024", FLOAT: "0.5", BOOLEAN: "true", DATE: "'2024-01-31'"}
ARTICLES = {TEXT: "text", INTEGER: "an integer", FLOAT: "a float", BOOLEAN: "a boolean", DATE: "a date"}
NUMBERS = (INTEGER, FLOAT)
MAX_TEXT = 10_000
Value = str | int | float | bool | date
FROM_FILE = ("title", "author", "language")  # read from the file; metadata given by the user takes precedence
BUILT_IN = {
    "document": TEXT, "folder": TEXT, "kind": TEXT, "page": INTEGER, "pages": INTEGER, "modified": DATE,
    **dict.fromkeys(FROM_FILE, TEXT),
}  # fmt: skip
Plain = str | int | float | bool  # a metadata value as JSON stores it; a date is ISO text

_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")  # 007 is text
_FLOAT = re.compile(r"[+-]?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def type_of(value: object) -> str:
    """Return the type of a value; ValueError with the reason if it has none.

    Examples:
        >>> type_of(2024), type_of(True), type_of("2024")
        ('integer', 'boolean', 'text')
    """
    match value:
        case bool():
            return BOOLEAN
        case int():
            if not -(2**63) <= value < 2**63:
                raise ValueError("exceeds 64 bits")
            return INTEGER
        case float():
            if not math.isfinite(value):
                raise ValueError("is not a finite number")
            return FLOAT
        case datetime():
            raise ValueError("has a time of day: give a date, or text")
        case date():
            return DATE
        case str():
            if len(value) > MAX_TEXT:
                raise ValueError(f"is longer than {MAX_TEXT:,} characters")
            if any("\ud800" <= c <= "\udfff" for c in value):
                raise ValueError("contains surrogates")
            return TEXT
    raise ValueError("is none of text, integer, float, boolean and date")


def unboxed(value: Any) -> Any:
    """Convert a NumPy scalar to a Python value."""
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value


def common_type(types: Iterable[str]) -> str | None:
    """Return the type of a column with values of these types; None if they do not agree.

    Examples:
        >>> common_type(["integer", "float"]), common_type(["integer", "text"])
        ('float', None)
    """
    distinct = set(types)
    if distinct == set(NUMBERS):
        return FLOAT
    return distinct.pop() if len(distinct) == 1 else None


def fits(kind: str, column: str) -> bool:
    """Return whether values of a type can be stored in a column: integers also in a float column."""
    return kind == column or (kind, column) == (INTEGER, FLOAT)


def plain(value: Value, column: str) -> Plain:
    """Return a value of a column as it is stored."""
    return float(value) if column == FLOAT and not isinstance(value, date) else as_json(value)


def shown(stored: Plain, column: str) -> Value:
    """Return a stored value as a Python value.

    Examples:
        >>> shown("2024-01-31", "date")
        datetime.date(2024, 1, 31)
    """
    return date.fromisoformat(str(stored)) if column == DATE else stored


def as_json(value: Value) -> Plain:
    """Return a value for JSON: a date becomes ISO text."""
    return value.isoformat() if isinstance(value, date) else value


def read_date(text: str) -> date | None:
    """Parse a date such as 2024-01-31; None if it is not one."""
    try:
        return date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def column_type(cells: Iterable[str]) -> str:
    """Infer the type of a column from its texts, none of them empty.

    Examples:
        >>> column_type(["1", "2.5"]), column_type(["007", "8"]), column_type(["2024-01-31"])
        ('float', 'text', 'date')
    """
    texts = list(cells)
    for kind in (INTEGER, FLOAT, BOOLEAN, DATE):
        if texts and all(read_cell(text, kind) is not None for text in texts):
            return kind
    return TEXT


def read_cell(text: str, kind: str) -> Value | None:
    """Parse a text as a value of a type; None if that fails."""
    if kind == INTEGER:
        return int(text) if _INTEGER.fullmatch(text) and -(2**63) <= int(text) < 2**63 else None
    if kind == FLOAT:
        return float(text) if _FLOAT.fullmatch(text) and math.isfinite(float(text)) else None
    if kind == BOOLEAN:
        return {"true": True, "false": False}.get(text.lower())
    return read_date(text) if kind == DATE else text
