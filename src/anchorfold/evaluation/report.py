"""Evaluations as tables: one list of tables, written as HTML or Markdown."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorfold.evaluation.measure import compare
from anchorfold.evaluation.results import HEADS, RESULTS_FILE, Row, cells, macro_average

OURS = "anchorfold"


@dataclass(frozen=True)
class Table:
    """Text cells below heads; the lines numbered in `strong` stand out."""

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    strong: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Evaluation:
    """A short `name` that is unique in its report, the `folder` it lies in, and its results."""

    name: str
    folder: Path
    results: dict[str, Any]


def read_results(folder: Path) -> list[Evaluation]:
    """Every evaluation below a folder."""
    found = []
    for path in sorted(folder.rglob(RESULTS_FILE)):
        inside = path.parent.relative_to(folder).parts
        found.append(Evaluation("-".join(inside) or folder.resolve().name, path.parent, json.loads(path.read_text())))
    return found


def tables(results: dict[str, Any]) -> list[Table]:
    """What one evaluation found: every method, kinds of queries, and AnchorFold against each other method."""
    about = (
        f"{results['corpus']} with {results['model']}: {results['pages']:,} pages, {results['queries_asked']:,} queries"
    )
    found = method_tables(results["rows"], about)
    if lines := _duels(results):
        heads = ("AnchorFold against", "ratio", "NDCG@5", "95 % interval", "score kept", "95 % interval")
        found.append(Table("Paired differences, in points, over the same queries", heads, lines))
    return found


def method_tables(rows: Sequence[Mapping[str, Any]], title: str) -> list[Table]:
    """A line a method, with the paper's figure where it has the same cell; and kinds of queries, if several."""
    found = [Table(title, HEADS, [cells(r) for r in rows], _of(OURS, rows))]
    kinds = list(rows[0]["by_kind"])
    if len(kinds) > 1:
        lines = [(r["label"], *(f"{r['by_kind'][k]:.1f}" for k in kinds)) for r in rows]
        found.append(Table("NDCG@5 by kind of query", ("method", *kinds), lines, _of(OURS, rows)))
    return found


def _of(method: str, rows: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    return frozenset(i for i, r in enumerate(rows) if r["method"] == method)


def _duels(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """AnchorFold minus every other method under the same budget, with paired intervals."""
    queries, lines = results["queries"], []
    for row in results["rows"]:
        method, budget = row["label"].split("@")
        ours = queries.get(f"{OURS}@{budget}")
        if method == OURS or ours is None:
            continue
        line = [method, f"{row['ratio']:g}" if row["cap"] is None else f"cap {row['cap']}"]
        for value in ("ndcg", "retention"):
            gap = compare(ours[value], queries[row["label"]][value])
            line += [f"{gap['difference']:+.1f}", f"{gap['low']:+.1f} to {gap['high']:+.1f}"]
        lines.append(tuple(line))
    return lines


def averages(found: Sequence[Evaluation]) -> list[Table]:
    """Macro-averages of the benchmarks of which at least two data sets were evaluated, one table a model."""
    groups: dict[tuple[str, str], list[list[Row]]] = {}
    families: dict[str, str] = {}
    for results in (e.results for e in found):
        if results["benchmark"] is not None:
            groups.setdefault((results["benchmark"], results["model"]), []).append([Row(**r) for r in results["rows"]])
            families[results["model"]] = results["family"]
    made = []
    for (benchmark, model), sets in groups.items():
        if len(sets) > 1:
            rows = [vars(r) for r in macro_average(sets, benchmark, families[model])]
            title = f"{benchmark} with {model}: macro-average over {len(sets)} data sets"
            made += method_tables(rows, title)
    return made


def as_html(table: Table) -> str:
    """A table element below its title."""
    lines = [
        f"<tr{' class=ours' if i in table.strong else ''}>{''.join(f'<td>{html.escape(c)}' for c in line)}"
        for i, line in enumerate(table.lines)
    ]
    heads = "".join(f"<th>{html.escape(h)}" for h in table.heads)
    return f"<h2>{html.escape(table.title)}</h2><table><tr>{heads}{''.join(lines)}</table>"


def as_markdown(table: Table) -> str:
    """A Markdown table whose columns line up as text."""
    lines = [[f"**{c}**" if i in table.strong and c else c for c in line] for i, line in enumerate(table.lines)]
    widths = [max(len(line[i]) for line in (table.heads, *lines)) for i in range(len(table.heads))]
    rule = ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]
    body = [
        [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        for line in (table.heads, *lines)
    ]
    return "\n".join([f"**{table.title}**", "", *(f"| {' | '.join(line)} |" for line in (body[0], rule, *body[1:]))])
