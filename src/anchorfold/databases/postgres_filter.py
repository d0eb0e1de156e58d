"""Filters compiled to PostgreSQL, as conditions on the views `live_documents` and `live_pages`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anchorfold.filters.values import BOOLEAN, BUILT_IN, FROM_FILE, NUMBERS, Plain

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anchorfold.filters.where import Column, FilterNode

Condition = tuple[str, list[Any]]  # SQL and its parameters
FILTER_SECONDS = 10


def compile_filter(node: FilterNode | Column | Plain, types: Mapping[str, str], public: bool) -> Condition:
    """Compile a filter.

    Args:
        node: what `parse_where` returns.
        types: types of all columns.
        public: whether `document` and `folder` are the public names.
    """
    from anchorfold.filters.where import Column, FilterNode, operator_sql

    if isinstance(node, Column):
        return column_sql(node.name, types, public)
    if not isinstance(node, FilterNode):
        return ("%s::text", [node.replace("\0", "\ufffd")]) if isinstance(node, str) else ("%s", [node])
    parts = [compile_filter(operand, types, public) for operand in node.operands]
    texts, values = [part[0] for part in parts], [value for part in parts for value in part[1]]
    match node.operator:
        case "like":
            text = f"{texts[0]} LIKE {texts[1]} ESCAPE ''"
        case "ilike":
            text = f"lower({texts[0]}) LIKE lower({texts[1]}) ESCAPE ''"
        case operator:
            text = operator_sql(operator, texts)
    return text, values


def column_sql(name: str, types: Mapping[str, str], public: bool = False) -> Condition:
    """Return the value of a column."""
    names = {"document": "public_name", "folder": "public_folder"} if public else {}
    if name in BUILT_IN and name not in FROM_FILE:
        return names.get(name, name), []
    kind = types.get(name)
    cast = "::numeric" if kind in NUMBERS else "::boolean" if kind == BOOLEAN else ' COLLATE "C"'
    if name not in FROM_FILE:
        return f"(metadata ->> %s){cast}", [name]
    return f"coalesce(metadata ->> '{name}', file_metadata ->> '{name}'){cast}", []
