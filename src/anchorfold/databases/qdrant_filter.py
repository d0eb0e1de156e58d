"""Filters compiled to Qdrant.

SQL has three truth values, Qdrant has two: a condition on a missing value is neither true nor false in SQL. So a filter
is compiled to the pages for which it is true, with a second form for those for which it is false.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from anchorfold.databases.qdrant_engine import all_of, matches, models
from anchorfold.databases.qdrant_layout import metadata_path
from anchorfold.errors import FilterError
from anchorfold.filters.values import BOOLEAN, BUILT_IN, DATE, FLOAT, TEXT, Plain
from anchorfold.filters.where import Column, FilterNode
from anchorfold.storage.filter_sql import like_matches

EXACT = 2**53  # integers up to which Qdrant compares exactly
MOST_VALUES = 10_000  # of a text column that are compared one by one
NOTHING = all_of(matches("type", "none"))
_BOUNDS = {"<": "lt", "<=": "lte", ">": "gt", ">=": "gte"}
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class FilterCompiler:
    """Compiles the result of `parse_where`.

    Args:
        types: types of the columns.
        values: returns the distinct values of a text column by its path, at most a number of them.
        public: whether `document` and `folder` are the public names.
    """

    def __init__(self, types: Mapping[str, str], values: Callable[[str, int], list[str]], public: bool = False) -> None:
        self.types, self.values, self.public = types, values, public

    def compile(self, node: FilterNode, wanted: bool = True) -> models.Filter:
        """Return a filter for the pages for which a condition is true, or false."""
        nodes = [operand for operand in node.operands if isinstance(operand, FilterNode)]
        if node.operator == "not":
            return self.compile(nodes[0], not wanted)
        if node.operator in ("and", "or"):
            parts: list[Any] = [self.compile(part, wanted) for part in nodes]
            return models.Filter(must=parts) if (node.operator == "and") == wanted else models.Filter(should=parts)
        column, *values = node.operands
        assert isinstance(column, Column)
        path = self.path(column.name)
        if node.operator in ("is null", "is true", "is false"):
            condition = _is_empty(path) if node.operator == "is null" else matches(path, node.operator == "is true")
            return all_of(condition) if wanted else all_of(none_of=[condition])
        if any(isinstance(value, Column) for value in values):
            raise FilterError(
                f"Qdrant cannot compare two columns ({column.name} {node.operator} {values[0].name}): compare each "  # type: ignore[union-attr]
                "with a value, or use an index in a folder or in PostgreSQL."
            )
        name = "=" if node.operator == "!=" else node.operator
        condition = self.condition(column.name, path, name, [value for value in values if _is_plain(value)])
        if wanted != (node.operator == "!="):
            return all_of(condition)
        return all_of(none_of=[condition, _is_empty(path)])

    def path(self, column: str) -> str:
        """Return the path of a column in the payload."""
        if self.public and column in ("document", "folder"):
            return "public_name" if column == "document" else "public_folder"
        return column if column in BUILT_IN else metadata_path(column)

    def condition(self, column: str, path: str, name: str, values: list[Any]) -> Any:
        """Return a condition on the value of a column."""
        kind = self.types[column]
        if name in ("=", "in"):
            conditions = [_equals(path, kind, value) for value in values]
            return conditions[0] if len(conditions) == 1 else models.Filter(should=conditions)
        (value,) = values
        if kind == TEXT:
            return self._one_by_one(column, path, name, value)
        if kind == DATE:
            return models.FieldCondition(key=path, range=models.DatetimeRange(**{_BOUNDS[name]: _moment(value)}))
        if kind != FLOAT and isinstance(value, int) and abs(value) > EXACT:
            raise FilterError(f"Qdrant cannot compare {column} with {value}: integers are exact up to {EXACT:,} there.")
        return models.FieldCondition(key=path, range=models.Range(**{_BOUNDS[name]: _float(value)}))

    def _one_by_one(self, column: str, path: str, name: str, value: str) -> Any:
        """Patterns and the order of texts, which Qdrant lacks: compare every value that the column has."""
        known = self.values(path, MOST_VALUES + 1)
        if len(known) > MOST_VALUES:
            raise FilterError(
                f"{column} has more than {MOST_VALUES:,} different values, too many for {name} in Qdrant: compare it "
                "with = or in."
            )
        if name in _COMPARED:
            selected = [text for text in known if _COMPARED[name](text.encode(), value.encode())]
        else:
            selected = [text for text in known if like_matches(text, value, name == "ilike")]
        return matches(path, selected) if selected else NOTHING


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | bool)


def _is_empty(path: str) -> Any:
    return models.IsEmptyCondition(is_empty=models.PayloadField(key=path))


def _equals(path: str, kind: str, value: Plain) -> Any:
    if kind == DATE:
        moment = _moment(str(value))
        return models.FieldCondition(key=path, range=models.DatetimeRange(gte=moment, lte=moment))
    if kind == FLOAT:
        return models.FieldCondition(key=path, range=models.Range(gte=_float(value), lte=_float(value)))
    if kind not in (TEXT, BOOLEAN):
        if int(value) != value or not -(2**63) <= value < 2**63:
            return NOTHING
        value = int(value)
    return matches(path, value)


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return 1.7976931348623157e308 if value > 0 else -1.7976931348623157e308


def _moment(day: str) -> datetime:
    return datetime.fromisoformat(day).replace(tzinfo=UTC)
