"""Tables of text: one list of them is a report, in a terminal, as HTML or as Markdown."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anchorfold.evaluation.methods import OURS
from anchorfold.evaluation.results import HEADS, cells


@dataclass(frozen=True)
class Table:
    """Text cells below heads; the lines numbered in `strong` stand out; `note` says what to know."""

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    strong: frozenset[int] = frozenset()
    note: str = ""


def method_tables(rows: Sequence[Mapping[str, Any]], title: str, note: str = "") -> list[Table]:
    """A line per method, and kinds of queries if there are several; the paper's column only if it has such cells."""
    ours = frozenset(i for i, r in enumerate(rows) if r["method"] == OURS)
    columns = len(HEADS) if any(r["paper"] is not None for r in rows) else len(HEADS) - 1
    tables = [Table(title, HEADS[:columns], [cells(r)[:columns] for r in rows], ours, note)]
    kinds = list(rows[0]["by_kind"])
    if len(kinds) > 1:
        lines = [(r["label"], *(f"{r['by_kind'][k]:.1f}" for k in kinds)) for r in rows]
        tables.append(Table("NDCG@5 by kind of query", ("method", *kinds), lines, ours))
    return tables


def as_html(table: Table) -> str:
    """A table element below its title."""
    lines = [
        f"<tr{' class=ours' if i in table.strong else ''}>{''.join(f'<td>{html.escape(c)}' for c in line)}"
        for i, line in enumerate(table.lines)
    ]
    heads = "".join(f"<th>{html.escape(h)}" for h in table.heads)
    note = f"<p>{html.escape(table.note)}" if table.note else ""
    return f"<h3>{html.escape(table.title)}</h3><table><tr>{heads}{''.join(lines)}</table>{note}"


def as_markdown(table: Table) -> str:
    """A Markdown table whose columns line up as text."""
    lines = [[f"**{c}**" if i in table.strong and c else c for c in line] for i, line in enumerate(table.lines)]
    widths = [max(len(line[i]) for line in (table.heads, *lines)) for i in range(len(table.heads))]
    rule = ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]
    body = [
        [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        for line in (table.heads, *lines)
    ]
    text = [f"**{table.title}**", "", *(f"| {' | '.join(line)} |" for line in (body[0], rule, *body[1:]))]
    return "\n".join([*text, "", table.note] if table.note else text)
