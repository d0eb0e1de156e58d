"""Parsing of filters: an SQL condition, parsed by sqlglot and checked against the columns of the index.

The text itself is never executed: supported expressions become a tree of `FilterNode`, which a store compiles to its
own query language; everything else is an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from anchorfold.errors import FilterError
from anchorfold.filters.values import ARTICLES, BOOLEAN, DATE, EXAMPLES, FLOAT, INTEGER, NUMBERS, TEXT, Plain, read_date

MAX_WHERE = 2000  # characters
COMPARISONS: dict[type[exp.Expr], str] = {
    exp.EQ: "=", exp.NEQ: "!=", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">=",
}  # fmt: skip
MIRRORED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
SUPPORTED = (
    "compare columns with values (=, !=, <, <=, >, >=, in, between, like, ilike, is null), joined by and, or, not"
)
EXAMPLE = "year >= 2024 and department = 'sales'"

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns about expressions that are refused here


@dataclass(frozen=True)
class Column:
    """A column as an operand."""

    name: str


@dataclass(frozen=True)
class FilterNode:
    """An operator of a filter with its operands: nodes, columns or values.

    Operators are `and`, `or` (any number of nodes), `not` (one node; unknown stays unknown, as in SQL), `=`, `!=`, `<`,
    `<=`, `>`, `>=` (a column and a column or value), `in` (a column and values), `like` and `ilike` (a column and a
    pattern), `is null`, `is true` and `is false` (a column).
    """

    operator: str
    operands: tuple[FilterNode | Column | Plain, ...]

    def columns(self) -> Iterator[str]:
        """The columns that it uses."""
        for operand in self.operands:
            if isinstance(operand, FilterNode):
                yield from operand.columns()
            elif isinstance(operand, Column):
                yield operand.name


def parse_where(text: str, types: Mapping[str, str]) -> FilterNode:
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
        at = next((e["col"] for e in getattr(error, "errors", ()) if e.get("col")), None)
        raise FilterError(
            f"the filter {text!r} is not an SQL condition{f' (at character {at})' if at else ''}: write one such as "
            f'{EXAMPLE}. Quote column names that are SQL keywords or contain spaces, as in "when" is not null.'
        ) from error
    except RecursionError as error:
        raise FilterError("the filter is nested too deeply.") from error


class _Checker:
    """Converts parsed expressions into filters on columns of these types."""

    def __init__(self, types: Mapping[str, str]) -> None:
        self.types = types
        self.any_case = {name.lower(): name for name in types}

    def condition(self, node: exp.Expr | None) -> FilterNode:
        match node:
            case exp.Paren():
                return self.condition(_only(node, "this").this)
            case exp.Not():
                return FilterNode("not", (self.condition(_only(node, "this").this),))
            case exp.And() | exp.Or():
                parts = _only(node, "this", "expression").flatten(unnest=False)
                return FilterNode("and" if isinstance(node, exp.And) else "or", tuple(map(self.condition, parts)))
            case exp.Column():
                name = self.column(node)
                if (kind := self.types[name]) != BOOLEAN:
                    raise FilterError(
                        f"{name} is {ARTICLES[kind]}, not a condition: compare it, as in {name} = {EXAMPLES[kind]}."
                    )
                return FilterNode("=", (Column(name), True))
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                _only(node, "this", "expression")
                return self.comparison(node.this, COMPARISONS[type(node)], node.expression)
            case exp.Between():
                low, high = (_only(node, "this", "low", "high").args[name] for name in ("low", "high"))
                bounds = (self.comparison(node.this, ">=", low), self.comparison(node.this, "<=", high))
                return FilterNode("and", bounds)
            case exp.In():
                name = self.column(_only(node, "this", "expressions").this)
                if not node.expressions:
                    raise FilterError(f"{name} in () is empty: list values, such as {EXAMPLES[self.types[name]]}.")
                return FilterNode("in", (Column(name), *(self.value(name, value) for value in node.expressions)))
            case exp.Like() | exp.ILike():
                like = self.like(_only(node, "this", "expression", "negate"))
                return FilterNode("not", (like,)) if node.args.get("negate") else like
            case exp.Is():
                return self.truth(_only(node, "this", "expression"))
        raise _unsupported(node)

    def column(self, node: exp.Expr | None) -> str:
        """Return the name of a column that exists."""
        if not isinstance(node, exp.Column) or not isinstance(node.this, exp.Identifier):
            raise _unsupported(node)
        _only(node, "this")
        written = str(node.this.this)
        name = written if written in self.types else self.any_case.get(written.lower())
        if name is None:
            hint = f" (write text in single quotes: '{written}')" if node.this.args.get("quoted") else ""
            known = ", ".join(f"{name} ({kind})" for name, kind in self.types.items())
            raise FilterError(f"there is no column {written!r}{hint}: the columns are {known}.")
        return name

    def comparison(self, left: exp.Expr, operator: str, right: exp.Expr) -> FilterNode:
        left, right = _bare(left), _bare(right)
        if not isinstance(left, exp.Column) and isinstance(right, exp.Column):
            left, right, operator = right, left, MIRRORED[operator]
        name = self.column(left)
        kind = self.types[name]
        if kind == BOOLEAN and operator not in ("=", "!="):
            raise FilterError(f"{name} is a boolean, which has no order: write {name} = true or {name} = false.")
        if not isinstance(right, exp.Column):
            return FilterNode(operator, (Column(name), self.value(name, right)))
        other = self.column(right)
        if self.types[other] != kind and not {kind, self.types[other]} <= {*NUMBERS}:
            raise FilterError(f"cannot compare {kind} column {name!r} with {self.types[other]} column {other!r}.")
        return FilterNode(operator, (Column(name), Column(other)))

    def value(self, name: str, node: exp.Expr) -> Plain:
        """Return a value that a column can be compared with."""
        node, kind = _bare(node), self.types[name]
        if isinstance(node, exp.Null):
            raise FilterError(f"nothing equals null: write {name} is null, or {name} is not null.")
        value = _literal(node)
        if isinstance(value, date) and kind == DATE:
            return value.isoformat()
        if isinstance(value, str) and kind == DATE:
            if read_date(value) is None:
                raise FilterError(f"cannot compare date column {name!r} with {value!r}: write dates as '2024-01-31'.")
            return value
        expected = (BOOLEAN,) if isinstance(value, bool) else (TEXT,) if isinstance(value, str) else (INTEGER, FLOAT)
        if isinstance(value, date) or kind not in expected:
            example = f"{name} = {EXAMPLES[kind]}"
            raise FilterError(f"cannot compare {kind} column {name!r} with {node.sql()}: write {example}, for example.")
        return value

    def like(self, node: exp.Expr) -> FilterNode:
        name, pattern = self.column(node.this), _bare(node.expression)
        if self.types[name] != TEXT:
            raise FilterError(f"{name} is {ARTICLES[self.types[name]]}: like requires a text column.")
        if not isinstance(pattern, exp.Literal) or not pattern.is_string:
            raise FilterError(f"{name} like requires a pattern in single quotes, in which % matches any text.")
        return FilterNode("ilike" if isinstance(node, exp.ILike) else "like", (Column(name), str(pattern.this)))

    def truth(self, node: exp.Expr) -> FilterNode:
        name, wanted = self.column(node.this), node.expression
        if isinstance(wanted, exp.Null):
            return FilterNode("is null", (Column(name),))
        if isinstance(wanted, exp.Boolean) and self.types[name] == BOOLEAN:
            return FilterNode(f"is {str(bool(wanted.this)).lower()}", (Column(name),))
        raise FilterError(
            f"{name} is {wanted.sql()} is not supported: `is` requires null, not null, or (booleans) true or false."
        )


def _bare(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Paren):
        node = _only(node, "this").this
    return node


def _literal(node: exp.Expr) -> Plain | date:
    """Return a text, a number, a boolean or a date in the filter."""
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
                raise _unsupported(node) from None
        case exp.Neg():
            number = _literal(_bare(node.this))
            if isinstance(number, int | float) and not isinstance(number, bool):
                return -number
        case exp.Cast() if isinstance(node.this, exp.Literal) and node.to.is_type("date"):
            day = read_date(str(node.this.this))
            if day is None:
                raise FilterError(f"{node.this.sql()} is not a date: write dates as '2024-01-31'.")
            return day
    raise _unsupported(node)


def _only(node: exp.Expr, *allowed: str) -> exp.Expr:
    """Refuse other options of a node: an option that is ignored would silently change the meaning."""
    if any(value for name, value in node.args.items() if name not in allowed):
        raise _unsupported(node)
    return node


def _unsupported(node: exp.Expr | None) -> FilterError:
    text = "nothing" if node is None else node.sql()
    return FilterError(f"{text if len(text) < 80 else text[:77] + '...'} is not supported in a filter: {SUPPORTED}.")


def operator_sql(operator: str, operands: Sequence[str]) -> str:
    """Return the SQL of an operator of a `FilterNode` other than `like` and `ilike`, which differ by engine."""
    first, *rest = operands
    match operator:
        case "and" | "or":
            return f" {operator.upper()} ".join(f"({operand})" for operand in operands)
        case "not":
            return f"NOT ({first})"
        case "in":
            return f"{first} IN ({', '.join(rest)})"
        case "is null" | "is true" | "is false":
            return f"{first} {operator.upper()}"
        case comparison:
            return f"{first} {comparison} {rest[0]}"
