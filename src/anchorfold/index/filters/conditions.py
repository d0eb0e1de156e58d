"""Parsed filters: conditions on metadata columns that a store compiles to its own query language."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from anchorfold.index.store.records import Plain


@dataclass(frozen=True)
class Column:
    """A column as one side of a comparison."""

    name: str


@dataclass(frozen=True)
class Compare:
    """A comparison (=, !=, <, <=, >, >=) of a column with a value or with another column."""

    left: Column
    operator: str
    right: Column | Plain


@dataclass(frozen=True)
class IsNull:
    """`column is null`."""

    column: str


@dataclass(frozen=True)
class IsTruth:
    """`column is true` or `column is false`."""

    column: str
    value: bool


@dataclass(frozen=True)
class InValues:
    """`column in (...)`."""

    column: str
    values: Sequence[Plain]


@dataclass(frozen=True)
class Like:
    """`column like pattern`, or `ilike` if `ignore_case`: `%` is any text, `_` any character."""

    column: str
    pattern: str
    ignore_case: bool


@dataclass(frozen=True)
class Not:
    """Negation; unknown stays unknown, as in SQL."""

    inner: Parsed


@dataclass(frozen=True)
class Joined:
    """Conditions joined by `and` or `or`."""

    operator: str
    parts: Sequence[Parsed]


Parsed = Compare | IsNull | IsTruth | InValues | Like | Not | Joined


def columns_of(condition: Parsed) -> Iterator[str]:
    """The columns that a condition uses."""
    match condition:
        case Joined():
            for part in condition.parts:
                yield from columns_of(part)
        case Not():
            yield from columns_of(condition.inner)
        case Compare():
            yield condition.left.name
            if isinstance(condition.right, Column):
                yield condition.right.name
        case _:
            yield condition.column


def like_matches(pattern: str, text: str) -> bool:
    """Whether a text matches a LIKE pattern, in time linear in the text.

    Examples:
        >>> like_matches("%rep_rt%24", "annual report 2024")
        True
    """
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
