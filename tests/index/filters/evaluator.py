"""Filters evaluated in plain Python with three truth values: True, False and None (unknown)."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from anchorfold.index.filters.conditions import Column, Compare, InValues, IsNull, IsTruth, Joined, Like, Not, Parsed

Row = Mapping[str, Any]
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def evaluate(parsed: Parsed, row: Row) -> bool | None:
    """Whether a filter holds for a row of values by column, None for a missing one."""
    match parsed:
        case Joined():
            truths = {evaluate(part, row) for part in parsed.parts}
            decisive = parsed.operator == "or"  # one such part decides, whatever the others are
            return decisive if decisive in truths else None if None in truths else not decisive
        case Not():
            inner = evaluate(parsed.inner, row)
            return None if inner is None else not inner
        case Compare():
            left = row[parsed.left.name]
            right = row[parsed.right.name] if isinstance(parsed.right, Column) else parsed.right
            return None if left is None or right is None else OPERATORS[parsed.operator](left, right)
        case IsNull():
            return row[parsed.column] is None
        case IsTruth():
            return row[parsed.column] is parsed.value
        case InValues():
            return None if row[parsed.column] is None else row[parsed.column] in parsed.values
        case Like():
            return None if row[parsed.column] is None else _like(parsed, row[parsed.column])


def _like(parsed: Like, text: str) -> bool:
    pattern, text = (parsed.pattern.lower(), text.lower()) if parsed.ignore_case else (parsed.pattern, text)
    expression = "".join({"%": ".*", "_": "."}.get(character, re.escape(character)) for character in pattern)
    return re.fullmatch(expression, text, re.DOTALL) is not None
