"""Filters compiled to SQLite, and the protection under which they run."""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from anchorfold.errors import FilterError
from anchorfold.index.filters.conditions import (
    Column,
    Compare,
    InValues,
    IsNull,
    IsTruth,
    Joined,
    Like,
    Not,
    Parsed,
    columns_of,
    like_matches,
)
from anchorfold.index.store.records import BUILT_IN, FROM_FILE, Plain

FILTER_SECONDS = 10.0
TOO_DEEP = ("parser stack overflow", "Expression tree is too large")  # of SQLite, which has limits of its own
STEPS = 10_000  # SQLite instructions between two checks of the time
READABLE = {"documents", "versions", "pages", "live_documents", "live_pages", "json_each"}
FUNCTIONS = {"json_extract", "json_each", "date", "coalesce", "count", "folder_of", "kind_of", "like_matches"}
ALLOWED = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE}


@dataclass(frozen=True)
class Condition:
    """An SQL condition with its parameters."""

    sql: str
    parameters: tuple[object, ...] = ()

    def __and__(self, other: Condition) -> Condition:
        return Condition(f"({self.sql}) AND ({other.sql})", (*self.parameters, *other.parameters))


TRUE = Condition("true")


def page_condition(parsed: Parsed, public: bool = False) -> Condition:
    """A condition on `page_id` and `version_id` of live pages.

    Args:
        parsed: the filter.
        public: whether `document` and `folder` are the public names.
    """
    inner = compile_filter(parsed, public)
    if "page" in columns_of(parsed):
        return Condition(f"page_id IN (SELECT page_id FROM live_pages WHERE {inner.sql})", inner.parameters)
    return Condition(f"version_id IN (SELECT version_id FROM live_documents WHERE {inner.sql})", inner.parameters)


def compile_filter(parsed: Parsed, public: bool) -> Condition:
    """A condition on the columns of the views `live_documents` and `live_pages`."""
    match parsed:
        case Joined():
            parts = [compile_filter(part, public) for part in parsed.parts]
            sql = f" {parsed.operator.upper()} ".join(f"({part.sql})" for part in parts)
            return Condition(sql, tuple(p for part in parts for p in part.parameters))
        case Not():
            inner = compile_filter(parsed.inner, public)
            return Condition(f"NOT ({inner.sql})", inner.parameters)
        case Compare():
            left = column_sql(parsed.left.name, public)
            right = (
                column_sql(parsed.right.name, public)
                if isinstance(parsed.right, Column)
                else Condition("?", (_parameter(parsed.right),))
            )
            return Condition(f"{left.sql} {parsed.operator} {right.sql}", left.parameters + right.parameters)
    column = column_sql(parsed.column, public)
    match parsed:
        case IsNull():
            return Condition(f"{column.sql} IS NULL", column.parameters)
        case IsTruth():
            return Condition(f"{column.sql} IS {int(parsed.value)}", column.parameters)
        case InValues():
            marks = ", ".join("?" * len(parsed.values))
            return Condition(f"{column.sql} IN ({marks})", (*column.parameters, *map(_parameter, parsed.values)))
        case Like():
            return Condition(
                f"like_matches(?, {int(parsed.ignore_case)}, {column.sql})", (parsed.pattern, *column.parameters)
            )


def _parameter(value: Plain) -> Plain:
    """A value that SQLite can bind: integers beyond 64 bits become floats."""
    if not isinstance(value, int) or -(2**63) <= value < 2**63:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def column_sql(name: str, public: bool = False) -> Condition:
    """The value of a column of `live_documents` or `live_pages`."""
    document = "public_name" if public else "document"
    if name == "document":
        return Condition(document)
    if name == "folder":
        return Condition(f"folder_of({document})")
    if name == "kind":
        return Condition("kind_of(document)")
    if name in BUILT_IN and name not in FROM_FILE:
        return Condition(name)
    given = _member("metadata", name)
    if name not in FROM_FILE:
        return given
    return Condition(f"coalesce({given.sql}, json_extract(file_metadata, '$.{name}'))", given.parameters)


def _member(json: str, key: str) -> Condition:
    if '"' in key or "\\" in key:  # which a JSON path cannot express
        return Condition(f"(SELECT value FROM json_each({json}) WHERE key = ?)", (key,))
    return Condition(f"json_extract({json}, ?)", (f'$."{key}"',))


@contextmanager
def protected(connection: sqlite3.Connection, seconds: float = FILTER_SECONDS, text: bool = False) -> Iterator[None]:
    """Run filters: they may read the tables of documents and pages, call a few functions, and take some seconds.

    With `text`, the full-text index may be read as well.
    """
    connection.create_function("folder_of", 1, _folder_of, deterministic=True)
    connection.create_function("kind_of", 1, _kind_of, deterministic=True)
    connection.create_function("like_matches", 3, _like, deterministic=True)
    # Virtual tables are connected on first use, which the authorizer would deny.
    connection.execute("SELECT 1 FROM json_each('[]')")
    if text:
        connection.execute("SELECT 1 FROM text_index LIMIT 0")
    deadline = time.monotonic() + seconds
    connection.set_authorizer(_authorize_text if text else _authorize)
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


def _authorize(action: int, first: str | None, second: str | None, *_: object) -> int:
    if action in ALLOWED:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_READ and (first in READABLE or not first):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and second in FUNCTIONS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _authorize_text(action: int, first: str | None, second: str | None, *rest: object) -> int:
    # FTS5 runs statements of its own on its shadow tables while it is queried.
    if action == sqlite3.SQLITE_READ and first and (first.startswith("text_index") or first == "live_texts"):
        return sqlite3.SQLITE_OK
    if (action == sqlite3.SQLITE_FUNCTION and second in ("bm25", "match")) or (
        action == sqlite3.SQLITE_PRAGMA and first == "data_version"
    ):
        return sqlite3.SQLITE_OK
    return _authorize(action, first, second, *rest)


def _folder_of(name: str | None) -> str | None:
    return None if name is None else os.path.dirname(name) or "."


def _kind_of(name: str | None) -> str | None:
    return None if name is None else os.path.splitext(name)[1][1:].lower() or None


def _like(pattern: str, ignore_case: int, text: str | None) -> bool | None:
    if text is None:
        return None
    return like_matches(pattern.lower(), text.lower()) if ignore_case else like_matches(pattern, text)
