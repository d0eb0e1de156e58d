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
    from anchorfold.filters.where import Column, FilterNode

    if isinstance(node, Column):
        return column_sql(node.name, types, public)
    if not isinstance(node, FilterNode):
        return ("%s::text", [node.replace("\0", "\ufffd")]) if isinstance(node, str) else ("%s", [node])
    parts = [compile_filter(operand, types, public) for operand in node.operands]
    texts, values = [part[0] for part in parts], [value for part in parts for value in part[1]]
    first, *rest = texts
    match node.operator:
        case "and" | "or":
            text = f" {node.operator.upper()} ".join(f"({part})" for part in texts)
        case "not":
            text = f"NOT ({first})"
        case "in":
            text = f"{first} IN ({', '.join(rest)})"
        case "like":
            text = f"{first} LIKE {rest[0]} ESCAPE ''"
        case "ilike":
            text = f"lower({first}) LIKE lower({rest[0]}) ESCAPE ''"
        case "is null" | "is true" | "is false":
            text = f"{first} {node.operator.upper()}"
        case comparison:
            text = f"{first} {comparison} {rest[0]}"
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
