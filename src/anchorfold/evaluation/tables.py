"""Result tables and their rendering as HTML and Markdown.

Tables of ablations, calibration and efficiency show the paper's figures for the same task.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorfold.evaluation import paper
from anchorfold.evaluation.calibration import Calibration, mean_and_error, paired_gaps
from anchorfold.evaluation.methods import ANCHORFOLD
from anchorfold.evaluation.results import HEADS, Row, cells, with_paper_figure
from anchorfold.evaluation.run_folder import write_json
from anchorfold.evaluation.training_set import TRAINING_SET


@dataclass(frozen=True)
class Table:
    """Text cells with column heads; rows in `strong` are printed in bold, `note` below the table."""

    title: str
    heads: Sequence[str]
    lines: Sequence[Sequence[str]]
    strong: frozenset[int] = frozenset()
    note: str = ""


def method_tables(rows: Sequence[Mapping[str, Any]], title: str, note: str = "") -> list[Table]:
    """Tabulate methods, and query kinds if there are several; the paper's column only if it has values."""
    ours = frozenset(i for i, r in enumerate(rows) if r["method"] == ANCHORFOLD)
    columns = len(HEADS) if any(r["paper"] is not None for r in rows) else len(HEADS) - 1
    tables = [Table(title, HEADS[:columns], [cells(r)[:columns] for r in rows], ours, note)]
    kinds = list(rows[0]["by_kind"])
    if len(kinds) > 1:
        lines = [(r["label"], *(f"{r['by_kind'][k]:.1f}" for k in kinds)) for r in rows]
        tables.append(Table("NDCG@5 by kind of query", ("method", *kinds), lines, ours))
    return tables


def as_html(table: Table) -> str:
    """Render a table as HTML."""
    lines = [
        f"<tr{' class=ours' if i in table.strong else ''}>{''.join(f'<td>{html.escape(c)}' for c in line)}"
        for i, line in enumerate(table.lines)
    ]
    heads = "".join(f"<th>{html.escape(h)}" for h in table.heads)
    note = f"<p>{html.escape(table.note)}" if table.note else ""
    return f"<h3>{html.escape(table.title)}</h3><table><tr>{heads}{''.join(lines)}</table>{note}"


def as_markdown(table: Table) -> str:
    """Render a table as Markdown with aligned columns."""
    lines = [[f"**{c}**" if i in table.strong and c else c for c in line] for i, line in enumerate(table.lines)]
    widths = [max(len(line[i]) for line in (table.heads, *lines)) for i in range(len(table.heads))]
    rule = ["-" * widths[0], *("-" * (w - 1) + ":" for w in widths[1:])]
    body = [
        [line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
        for line in (table.heads, *lines)
    ]
    text = [f"**{table.title}**", "", *(f"| {' | '.join(line)} |" for line in (body[0], rule, *body[1:]))]
    return "\n".join([*text, "", table.note] if table.note else text)


ABLATION_FILE = "ablation.json"
# Names of variants in the paper.
PAPER_NAMES = {
    "anchorfold": "full method",
    "one-step": "one step",
    "random-anchors": "random anchors",
    "no-folding": "no folding",
    "uniform-weights": "uniform weights",
}
# Table and row column of each ablation in the paper.
KEYS = {"variants": ("ablation", "variant"), "windows": ("windows", "relative"), "depths": ("depths", "steps")}
TASK = "vidore-v2"  # task of the paper's ablations and latencies
ELSEWHERE = "The paper's figures are ColQwen2.5's at ratio 0.2: compare their order only."
PAPER_LATENCY = (
    "In brackets the paper's figures: ColQwen2.5 on an A800 GPU, ratio 0.1, 148,409 vectors; its compression does not "
    "include capture, which is its total less the full index and compression (2.5 ms for SAP and AnchorFold)."
)
MIN_PAGES, MIN_WARM_UP, MIN_PASSES = 10, 5, 2  # minimums for reliable latencies


def save_ablation(path: Path, result: Mapping[str, Any]) -> None:
    """Write the result of an ablation atomically."""
    write_json(path, dict(result))


def in_paper(result: Mapping[str, Any]) -> bool:
    """Return whether the paper has the same backbone, benchmark and ratio."""
    same = (result["family"], result["corpus"]) == (paper.TRAINED_BACKBONE, TASK)
    return same and result["ratio"] == 0.2 and result["data_sets"] == paper.suite_size(TASK)


def ablation_table(result: Mapping[str, Any]) -> Table:
    """Tabulate an ablation, with the paper's figures if they are of the same task."""
    name, key = KEYS[result["ablation"]]
    reported = {row[key]: row for row in paper.table(name)} if result["corpus"] == TASK else {}
    first, same = result["rows"][0], in_paper(result)
    heads = ["", "layers", "score retained, %", "NDCG@5", "difference", *(["paper's NDCG@5"] if reported else [])]
    pairs = first["pair_retention"] is not None
    if pairs:
        heads[2:2] = ["on pairs, %", *(["paper's"] if reported else [])]
    lines = []
    for row in result["rows"]:
        label = PAPER_NAMES.get(row["name"], row["name"].removeprefix("K=").removesuffix(" %"))
        theirs = reported.get(label)
        line = [row["name"], f"{row['window'][0]}-{row['window'][1]}"]
        if pairs:
            line += [f"{row['pair_retention']:.3f}"]
            line += [(theirs or {}).get("score_retention", "")] if reported else []
        line += [f"{row['score_retention']:.2f}", f"{row['ndcg']:.2f}", f"{row['ndcg'] - first['ndcg']:+.2f}"]
        if theirs is not None and result["ablation"] == "variants":
            line[-1] += f" [{float(theirs['ndcg']) - float(reported[PAPER_NAMES['anchorfold']]['ndcg']):+.2f}]"
        if reported:
            figure = None if theirs is None else float(theirs["ndcg"])
            line.append(
                with_paper_figure(row["ndcg"], figure, 2) if same else "" if figure is None else f"{figure:.2f}"
            )
        lines.append(tuple(line))
    chosen = frozenset(i for i, row in enumerate(result["rows"]) if is_default(result, row))
    notes = [ELSEWHERE] if reported and not same else []
    notes += [f"Pairs: {result['pairs']}."] if result["pairs"] else []
    notes += [f"Layer settings: {result['layer_settings']}."] if "layer_settings" in result else []
    title = (
        f"{result['ablation']} on {Path(result['corpus']).name} with {result['model']}, ratio {result['ratio']:g}; "
        f"full index {result['full']:.2f}"
    )
    return Table(title, heads, lines, chosen, " ".join(notes))


def is_default(result: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Return whether a row is the default configuration of the backbone."""
    if result["ablation"] == "variants":
        return bool(row["name"] == "anchorfold")
    if result["ablation"] == "depths":
        return bool(row["name"] == f"K={result['steps']}")
    return bool(row["window"] == result["chosen"])


def calibration_table(calibration: Calibration, family: str, pairs: str) -> Table:
    """Tabulate the candidates of a calibration: retention per depth and the paired gap to the best.

    Args:
        calibration: the result.
        family: family of the model.
        pairs: source of the pairs; the paper's retention is shown for the same source.
    """
    rows = paper.table("calibration") if pairs == TRAINING_SET else []
    reported = {int(r["steps"]): r for r in rows if r["backbone"] == family}
    lines: list[tuple[str, ...]] = []
    for depth, (gap, gap_error) in paired_gaps(calibration.values).items():
        first, last = calibration.windows[depth]
        mean, error = mean_and_error(calibration.values[depth])
        theirs = reported.get(depth)
        lines.append((
            str(depth), f"{first}-{last}", f"{mean:.3f} +- {error:.3f}", f"{gap:.3f} +- {gap_error:.3f}",
            *([f"{theirs['retention']} +- {theirs['standard_error']} ({theirs['window']})" if theirs else ""]
              if reported else []),
            "chosen" if depth == calibration.settings.steps else "",
        ))  # fmt: skip
    heads = ("K", "layers", "score retained, %", "gap to the best", *(["paper"] if reported else []), "")
    title = f"score retained at ratio 0.2, {len(calibration.random)} pairs"
    chosen = frozenset(i for i, line in enumerate(lines) if line[-1])
    return Table(title, heads, lines, chosen)


def efficiency_table(result: Mapping[str, Any], quality: Mapping[str, Row] | None = None) -> Table:
    """Tabulate latencies in the columns of appendix E, with the paper's figures if they are of the same task.

    Args:
        result: an efficiency file.
        quality: rows of the evaluation of the same model and corpus by label, for NDCG@5 and its retention.
    """
    reported = {r["method"]: r for r in paper.table("efficiency")} if result["corpus"] == TASK else {}
    full = result["rows"][0]["total"]
    lines = []
    for row in result["rows"]:
        theirs = reported.get(row["method"].split("@")[0], {})
        measured = (quality or {}).get(row["method"])

        def cell(ours: str, *names: str, theirs: Mapping[str, str] = theirs) -> str:
            figures = " +- ".join(filter(None, (theirs.get(name, "") for name in names)))
            return f"{ours} [{figures}]".strip() if figures else ours

        lines.append((
            row["method"], cell("" if measured is None else f"{measured.ndcg:.1f}", "ndcg"),
            cell("" if measured is None else f"{measured.ndcg_retention:.1f}", "retention"), f"{row['realised']:.2f}",
            *(f"{row[part]:.2f} +- {row[f'{part}_sd']:.2f}" for part in ("encoding", "capture")),
            cell(f"{row['compression']:.2f} +- {row['compression_sd']:.2f}", "compression_ms", "compression_sd_ms"),
            cell(f"{row['total']:.1f} +- {row['total_sd']:.1f}", "total_ms", "total_sd_ms"),
            cell(f"{row['p95']:.1f}", "p95_ms"), cell(f"{row['total'] / full:.3f}", "index_over_full"),
            f"{row['megabytes']:.0f}",
        ))  # fmt: skip
    heads = (
        "method", "NDCG@5", "retained, %", "vectors kept, %", "encoding, ms", "capture, ms", "compression, ms",
        "total, ms", "P95, ms", "index / full", "peak MB",
    )  # fmt: skip
    title = (
        f"{result['model']} on {result['device']} in {result['dtype'].removeprefix('torch.')}: {result['pages']} pages "
        f"of {result['corpus']}, {result['rows'][0]['vectors']:,} vectors, {result['passes']} passes"
    )
    notes = [reliability_warning(result), "Total = encoding + capture + compression."]
    notes += [PAPER_LATENCY] if reported else []
    notes += [f"DocPruner's threshold is from {result['calibrated_on']}."] if result["calibrated_on"] else []
    notes += [f"Layer settings: {result['layer_settings']}."] if "layer_settings" in result else []
    ours = frozenset(i for i, line in enumerate(lines) if "anchorfold@" in line[0])
    return Table(title, heads, lines, ours, " ".join(filter(None, notes)))


def reliability_warning(result: Mapping[str, Any]) -> str:
    """Return a warning if too few pages were timed, else an empty string."""
    sizes = (result["pages"], result.get("warm_up", MIN_WARM_UP), result["passes"])
    if all(size >= least for size, least in zip(sizes, (MIN_PAGES, MIN_WARM_UP, MIN_PASSES), strict=True)):
        return ""
    return (
        f"These latencies are not reliable: {sizes[0]} pages, {sizes[1]} warm-up pages, {sizes[2]} passes. Use at "
        f"least --pages {MIN_PAGES} --warm-up {MIN_WARM_UP} --passes {MIN_PASSES}; the paper uses 200, 30 and 3."
    )
