"""Filters evaluated in plain Python with three truth values: True, False and None (unknown)."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from anchorfold.filters.where import Column, FilterNode

Row = Mapping[str, Any]
OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def evaluate(node: FilterNode, row: Row) -> bool | None:
    """Whether a filter holds for a row of values by column, None for a missing one."""
    if node.operator in ("and", "or"):
        truths = {evaluate(part, row) for part in node.operands if isinstance(part, FilterNode)}
        decisive = node.operator == "or"  # one such part decides, whatever the others are
        return decisive if decisive in truths else None if None in truths else not decisive
    if isinstance(node.operands[0], FilterNode):
        inner = evaluate(node.operands[0], row)
        return None if inner is None else not inner
    operands: list[Any] = [row[operand.name] if isinstance(operand, Column) else operand for operand in node.operands]
    left, *others = operands
    if node.operator.startswith("is "):
        return left is {"is null": None, "is true": True, "is false": False}[node.operator]
    if left is None or None in others:
        return None
    if node.operator == "in":
        return left in others
    return (
        _like(left, others[0], node.operator) if "like" in node.operator else OPERATORS[node.operator](left, others[0])
    )


def _like(text: str, pattern: str, like: str) -> bool:
    pattern, text = (pattern.lower(), text.lower()) if like == "ilike" else (pattern, text)
    expression = "".join({"%": ".*", "_": "."}.get(character, re.escape(character)) for character in pattern)
    return re.fullmatch(expression, text, re.DOTALL) is not None
