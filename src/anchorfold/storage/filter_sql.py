"""Filters compiled to SQLite, and the protection under which they run."""

from __future__ import annotations

import math
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from anchorfold.errors import FilterError
from anchorfold.filters.values import BUILT_IN, FROM_FILE, Plain

if TYPE_CHECKING:
    from anchorfold.filters.where import Column, FilterNode

FILTER_SECONDS = 10.0
TOO_DEEP = ("parser stack overflow", "Expression tree is too large")  # of SQLite, which has limits of its own
STEPS = 10_000  # SQLite instructions between two checks of the time
READABLE = {"documents", "versions", "pages", "live_documents", "live_pages", "json_each"}
FUNCTIONS = {"json_extract", "json_each", "date", "coalesce", "count", "folder_of", "kind_of", "like_matches"}


@dataclass(frozen=True)
class SqlCondition:
    """An SQL expression with its parameters."""

    sql: str
    parameters: tuple[object, ...] = ()

    def __and__(self, other: SqlCondition) -> SqlCondition:
        return SqlCondition(f"({self.sql}) AND ({other.sql})", (*self.parameters, *other.parameters))


TRUE = SqlCondition("true")


def compile_filter(node: FilterNode | Column | Plain, public: bool) -> SqlCondition:
    """Compile a filter to a condition on the columns of the views `live_documents` and `live_pages`.

    Args:
        node: what `parse_where` returns.
        public: whether `document` and `folder` are the public names.
    """
    from anchorfold.filters.where import Column, FilterNode, operator_sql

    if isinstance(node, Column):
        return column_sql(node.name, public)
    if not isinstance(node, FilterNode):
        return SqlCondition("?", (_parameter(node),))
    parts = [compile_filter(operand, public) for operand in node.operands]
    operands = [part.sql for part in parts]
    if node.operator in ("like", "ilike"):
        sql = f"like_matches({operands[0]}, {operands[1]}, {int(node.operator == 'ilike')})"
    else:
        sql = operator_sql(node.operator, operands)
    return SqlCondition(sql, tuple(parameter for part in parts for parameter in part.parameters))


def _parameter(value: Plain) -> Plain:
    """Return a value that SQLite can bind: integers beyond 64 bits become floats."""
    if not isinstance(value, int) or -(2**63) <= value < 2**63:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def column_sql(name: str, public: bool = False) -> SqlCondition:
    """Return the value of a column of `live_documents` or `live_pages`."""
    document = "public_name" if public else "document"
    derived = {"document": document, "folder": f"folder_of({document})", "kind": "kind_of(document)"}
    if name in BUILT_IN and name not in FROM_FILE:
        return SqlCondition(derived.get(name, name))
    if '"' in name or "\\" in name:  # which a JSON path cannot express
        value = SqlCondition("(SELECT value FROM json_each(metadata) WHERE key = ?)", (name,))
    else:
        value = SqlCondition("json_extract(metadata, ?)", (f'$."{name}"',))
    if name not in FROM_FILE:
        return value
    return SqlCondition(f"coalesce({value.sql}, json_extract(file_metadata, '$.{name}'))", value.parameters)


@contextmanager
def protected(connection: sqlite3.Connection, seconds: float = FILTER_SECONDS, text: bool = False) -> Iterator[None]:
    """Run filters: they may read the tables of documents and pages, call a few functions, and take some seconds.

    With `text`, the full-text index may be read as well.
    """

    def authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
        # FTS5 runs statements of its own on its shadow tables while it is queried.
        if action == sqlite3.SQLITE_READ:
            full_text = text and first and (first.startswith("text_index") or first == "live_texts")
            allowed = not first or first in READABLE or full_text
        elif action == sqlite3.SQLITE_FUNCTION:
            allowed = second in FUNCTIONS or (text and second in ("bm25", "match"))
        else:
            allowed = action == sqlite3.SQLITE_SELECT or (
                text and action == sqlite3.SQLITE_PRAGMA and first == "data_version"
            )
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    for function in (folder_of, kind_of, like_matches):
        count = function.__code__.co_argcount
        connection.create_function(function.__name__, count, function, deterministic=True)
    # Virtual tables are connected on first use, which the authorizer would deny.
    connection.execute("SELECT 1 FROM json_each('[]')")
    if text:
        connection.execute("SELECT 1 FROM text_index LIMIT 0")
    deadline = time.monotonic() + seconds
    connection.set_authorizer(authorize)
    connection.set_progress_handler(lambda: time.monotonic() > deadline, STEPS)
    try:
        yield
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_INTERRUPT:
            raise FilterError(f"the filter took longer than {seconds:g} seconds: use a simpler one.") from error
        if str(error).startswith(TOO_DEEP):
            raise FilterError("the filter is nested too deeply.") from error
        raise
    finally:
        connection.set_authorizer(None)
        connection.set_progress_handler(None, 0)


def folder_of(name: str | None) -> str | None:
    """Return the folder of a document by its name."""
    return None if name is None else os.path.dirname(name) or "."


def kind_of(name: str | None) -> str | None:
    """Return the type of a document by its name, such as pdf."""
    return None if name is None else os.path.splitext(name)[1][1:].lower() or None


def like_matches(text: str | None, pattern: str, ignore_case: bool = False) -> bool | None:
    """Return whether a text matches a LIKE pattern, in time linear in the text.

    Examples:
        >>> like_matches("annual report 2024", "%rep_rt%24")
        True
    """
    if text is None:
        return None
    if ignore_case:
        text, pattern = text.lower(), pattern.lower()
    (first, *others), last_length = _like_parts(pattern)
    if not others:
        return first.fullmatch(text) is not None
    *middle, last = others
    match = first.match(text)
    for part in middle:
        match = match and part.search(text, match.end())
    if match is None:
        return False
    start = len(text) - last_length  # the last part has a fixed length and ends the text
    return start >= match.end() and last.fullmatch(text, start) is not None


@lru_cache(64)
def _like_parts(pattern: str) -> tuple[list[re.Pattern[str]], int]:
    parts = pattern.split("%")
    compiled = [re.compile(".".join(map(re.escape, part.split("_"))), re.DOTALL) for part in parts]
    return compiled, len(parts[-1])
