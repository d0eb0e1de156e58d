"""Parsing of filters: an SQL condition, parsed by sqlglot and checked against the columns of the index.

The text itself is never executed: supported expressions become `Parsed` conditions, everything else is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import date

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from anchorfold.errors import FilterError
from anchorfold.index.filters.conditions import Column, Compare, InValues, IsNull, IsTruth, Joined, Like, Not, Parsed
from anchorfold.index.filters.values import ARTICLES, BOOLEAN, DATE, EXAMPLES, FLOAT, INTEGER, NUMBERS, TEXT, read_date
from anchorfold.index.store.records import Plain

MAX_WHERE = 2000  # characters
SIGNS: dict[type[exp.Expr], str] = {
    exp.EQ: "=", exp.NEQ: "!=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
CAN = "a filter can compare columns with values (=, !=, <, <=, >, >=, in, between, like, ilike, is null) and join that with and, or, not"  # noqa: E501
EXAMPLE = "year >= 2024 and department = 'sales'"

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of what we refuse


def parse_where(text: str, types: Mapping[str, str]) -> Parsed:
    """Parse a filter on columns of these types.

    Raises:
        FilterError: what is wrong, and what exists.
    """
    if len(text) > MAX_WHERE:
        raise FilterError(f"the filter is longer than {MAX_WHERE:,} characters.")
    if any("\ud800" <= character <= "\udfff" for character in text):  # which SQLite cannot store
        raise FilterError(f"the filter {text!r} contains surrogates, which are not characters.")
    if not text.strip():
        raise FilterError(f"the filter is empty: write one such as {EXAMPLE}.")
    try:
        return _Checker(types).condition(parse_one(text, into=exp.Condition))
    except SqlglotError as error:
        raise FilterError(
            f"the filter {text!r} is no SQL condition{_position(error)}: write one such as {EXAMPLE}; a column whose "
            'name is an SQL word or holds a space stands in double quotes, as in "when" is not null.'
        ) from error
    except RecursionError as error:
        raise FilterError("the filter is nested too deeply.") from error


def listed(types: Mapping[str, str]) -> str:
    """What exists, for messages."""
    return ", ".join(f"{name} ({kind})" for name, kind in types.items())


def _position(error: SqlglotError) -> str:
    for known in getattr(error, "errors", ()):
        if known.get("col"):
            return f" (at character {known['col']})"
    return ""


class _Checker:
    """Makes conditions of what a parser understood, for columns of these types."""

    def __init__(self, types: Mapping[str, str]) -> None:
        self.types = types
        self.any_case = {name.lower(): name for name in types}

    def condition(self, node: exp.Expr | None) -> Parsed:
        match node:
            case exp.Paren():
                _only(node, "this")
                return self.condition(node.this)
            case exp.Not():
                _only(node, "this")
                return Not(self.condition(node.this))
            case exp.And() | exp.Or():
                _only(node, "this", "expression")
                parts = [self.condition(part) for part in node.flatten(unnest=False)]
                return Joined("and" if isinstance(node, exp.And) else "or", parts)
            case exp.Column():
                name = self.column(node)
                if self.types[name] != BOOLEAN:
                    kind = self.types[name]
                    raise FilterError(
                        f"{name} is {ARTICLES[kind]}, and stands alone in the filter: compare it, such as "
                        f"{name} = {EXAMPLES[kind]}."
                    )
                return Compare(Column(name), "=", True)
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                _only(node, "this", "expression")
                return self.comparison(node.this, SIGNS[type(node)], node.expression)
            case exp.Between():
                _only(node, "this", "low", "high")
                return Joined("and", [self.comparison(node.this, ">=", node.args["low"]), self.comparison(node.this, "<=", node.args["high"])])  # noqa: E501  # fmt: skip
            case exp.In():
                _only(node, "this", "expressions")
                name = self.column(node.this)
                options = node.expressions
                if not options:
                    raise FilterError(f"{name} in (): name at least one value, such as {EXAMPLES[self.types[name]]}.")
                return InValues(name, tuple(self.value(name, option) for option in options))
            case exp.Like() | exp.ILike():
                _only(node, "this", "expression", "negate")
                like = self.like(node)
                return Not(like) if node.args.get("negate") else like
            case exp.Is():
                _only(node, "this", "expression")
                return self.truth(node)
        raise _refused(node)

    def column(self, node: exp.Expr | None) -> str:
        """The name of a column that exists."""
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            raise _refused(node)
        _only(node, "this")
        written = str(node.this.this)
        name = written if written in self.types else self.any_case.get(written.lower())
        if name is None:
            quotes = f" (text stands in single quotes: '{written}')" if node.this.args.get("quoted") else ""
            raise FilterError(f"there is no column {written!r}{quotes}: there are {listed(self.types)}.")
        return name

    def comparison(self, left: exp.Expr, sign: str, right: exp.Expr) -> Parsed:
        left, right = _bare(left), _bare(right)
        if not isinstance(left, exp.Column) and isinstance(right, exp.Column):
            left, right, sign = right, left, MIRRORED[sign]
        name = self.column(left)
        kind = self.types[name]
        if kind == BOOLEAN and sign not in ("=", "!="):
            raise FilterError(f"{name} is a boolean, which has no order: write {name} = true or {name} = false.")
        if not isinstance(right, exp.Column):
            return Compare(Column(name), sign, self.value(name, right))
        other = self.column(right)
        if self.types[other] != kind and not {kind, self.types[other]} <= {*NUMBERS}:
            raise FilterError(f"{name} is {ARTICLES[kind]}, and {other} is {ARTICLES[self.types[other]]}: they do not compare.")  # noqa: E501  # fmt: skip
        return Compare(Column(name), sign, Column(other))

    def value(self, name: str, node: exp.Expr) -> Plain:
        """A value that a column can be compared with."""
        node, kind = _bare(node), self.types[name]
        if isinstance(node, exp.Null):
            raise FilterError(f"nothing equals null: write {name} is null, or {name} is not null.")
        value = _literal(node)
        if isinstance(value, date) and kind == DATE:
            return value.isoformat()
        if isinstance(value, str) and kind == DATE:
            if read_date(value) is None:
                raise FilterError(f"{name} is a date, and {value!r} is none: write one as '2024-01-31'.")
            return value
        if isinstance(value, bool):
            fits = kind == BOOLEAN
        elif isinstance(value, str):
            fits = kind == TEXT
        else:
            fits = isinstance(value, int | float) and kind in (INTEGER, FLOAT)
        if not fits or isinstance(value, date):
            raise FilterError(
                f"{name} is {ARTICLES[kind]}, and does not compare with {node.sql()}: write {name} = {EXAMPLES[kind]}, "
                "for example."
            )
        return value

    def like(self, node: exp.Expr) -> Parsed:
        name = self.column(node.this)
        if self.types[name] != TEXT:
            raise FilterError(f"{name} is {ARTICLES[self.types[name]]}, and like is for text.")
        pattern = _bare(node.expression)
        if not isinstance(pattern, exp.Literal) or not pattern.is_string:
            raise FilterError(f"{name} like: give a text in single quotes, in which % stands for anything.")
        return Like(name, str(pattern.this), isinstance(node, exp.ILike))

    def truth(self, node: exp.Is) -> Parsed:
        name, wanted = self.column(node.this), node.expression
        if isinstance(wanted, exp.Null):
            return IsNull(name)
        if isinstance(wanted, exp.Boolean) and self.types[name] == BOOLEAN:
            return IsTruth(name, bool(wanted.this))
        raise FilterError(f"{name} is {wanted.sql()}: after is comes null, not null, and for a boolean true or false.")


def _bare(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        _only(node, "this")
        node = node.this
    return node


def _literal(node: exp.Expr) -> Plain | date:
    """A text, a number, a boolean or a date that stands in the filter."""
    match node:
        case exp.Boolean():
            return bool(node.this)
        case exp.Literal() if node.is_string:
            return str(node.this)
        case exp.Literal():
            text = str(node.this)
            try:
                return int(text) if text.isdigit() else float(text)
            except ValueError:
                raise _refused(node) from None
        case exp.Neg():
            number = _literal(_bare(node.this))
            if isinstance(number, int | float) and not isinstance(number, bool):
                return -number
        case exp.Cast() if isinstance(node.this, exp.Literal) and node.to.is_type("date"):
            day = read_date(str(node.this.this))
            if day is None:
                raise FilterError(f"{node.this.sql()} is no date: write one as '2024-01-31'.")
            return day
    raise _refused(node)


def _only(node: exp.Expr, *allowed: str) -> None:
    """Refuse what else a node may say: an option that is not looked at would silently change the meaning."""
    if any(value for name, value in node.args.items() if name not in allowed):
        raise _refused(node)


def _refused(node: exp.Expr | None) -> FilterError:
    text = "nothing" if node is None else node.sql()
    return FilterError(f"{text if len(text) < 80 else text[:77] + '...'} cannot stand there: {CAN}.")
