"""Ablations, windows, depths, calibration and efficiency as tables, with the paper's figures for ColQwen2.5 beside."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anchorfold.evaluation import paper
from anchorfold.evaluation.calibration import Calibration, mean_and_error, paired_gaps
from anchorfold.evaluation.results import beside
from anchorfold.evaluation.run_folder import write_json
from anchorfold.evaluation.tables import Table

ABLATION_FILE = "ablation.json"
# Our variants under the paper's names.
PAPER_NAMES = {
    "anchorfold": "full method",
    "one-step": "one step",
    "random-anchors": "random anchors",
    "no-folding": "no folding",
    "uniform-weights": "uniform weights",
}
# What the paper's table of each ablation calls a row.
KEYS = {"variants": ("ablation", "variant"), "windows": ("windows", "relative"), "depths": ("depths", "steps")}
ELSEWHERE = "The paper's figures are ColQwen2.5's on ViDoRe v2: read them for their order."


def save_ablation(path: Path, result: Mapping[str, Any]) -> None:
    """Write what an ablation measured, in one step."""
    write_json(path, dict(result))


def in_paper(result: Mapping[str, Any]) -> bool:
    """Whether the paper ran the same: the same backbone on the same benchmark at the same ratio."""
    same = (result["family"], result["corpus"]) == (paper.TRAINED_BACKBONE, "vidore-v2")
    return same and result["ratio"] == 0.2 and result["data_sets"] == paper.suite_size("vidore-v2")


def table_lines(result: Mapping[str, Any]) -> Table:
    """One ablation: a line a variant, window or depth."""
    name, key = KEYS[result["ablation"]]
    reported = {row[key]: row for row in paper.table(name)}
    first, same = result["rows"][0], in_paper(result)
    heads = ["", "layers", "score retained, %", "NDCG@5", "difference", "paper's NDCG@5"]
    pairs = first["pair_retention"] is not None
    if pairs:
        heads[2:2] = ["on pairs, %", "paper's"]
    lines = []
    for row in result["rows"]:
        label = PAPER_NAMES.get(row["name"], row["name"].removeprefix("K=").removesuffix(" %"))
        theirs = reported.get(label)
        line = [row["name"], f"{row['window'][0]}-{row['window'][1]}"]
        if pairs:
            line += [f"{row['pair_retention']:.3f}", (theirs or {}).get("score_retention", "")]
        line += [f"{row['score_retention']:.2f}", f"{row['ndcg']:.2f}", f"{row['ndcg'] - first['ndcg']:+.2f}"]
        figure = None if theirs is None else float(theirs["ndcg"])
        line.append(beside(row["ndcg"], figure, 2) if same else "" if figure is None else f"{figure:.2f}")
        lines.append(tuple(line))
    chosen = frozenset(i for i, row in enumerate(result["rows"]) if is_deployed(result, row))
    source = f" Pairs: {result['pairs']}." if result["pairs"] else ""
    source += f" Layer settings: {result['layer_settings']}." if "layer_settings" in result else ""
    title = (
        f"{result['ablation']} on {Path(result['corpus']).name} with {result['model']}, ratio {result['ratio']:g}; "
        f"full index {result['full']:.2f}"
    )
    return Table(title, heads, lines, chosen, ("" if same else ELSEWHERE) + source)


def is_deployed(result: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a row is the configuration that the backbone is used with."""
    if result["ablation"] == "variants":
        return bool(row["name"] == "anchorfold")
    if result["ablation"] == "depths":
        return bool(row["name"] == f"K={result['steps']}")
    return bool(row["window"] == result["chosen"])


def calibration_table(calibration: Calibration, family: str) -> Table:
    """The joint candidates, one a depth: retention, the paired gap to the best, and the paper's retention."""
    reported = {int(r["steps"]): r for r in paper.table("calibration") if r["backbone"] == family}
    lines = []
    for depth, (gap, gap_error) in paired_gaps(calibration.values).items():
        first, last = calibration.windows[depth]
        mean, error = mean_and_error(calibration.values[depth])
        theirs = reported.get(depth)
        lines.append((
            str(depth), f"{first}-{last}", f"{mean:.3f} +- {error:.3f}", f"{gap:.3f} +- {gap_error:.3f}",
            "" if theirs is None else f"{theirs['retention']} +- {theirs['standard_error']} ({theirs['window']})",
            "chosen" if depth == calibration.settings.steps else "",
        ))  # fmt: skip
    heads = ("K", "layers", "score retained, %", "gap to the best", "paper", "")
    title = f"score retained at ratio 0.2, {len(calibration.random)} pairs"
    chosen = frozenset(i for i, line in enumerate(lines) if line[-1])
    return Table(title, heads, lines, chosen)


def efficiency_table(result: Mapping[str, Any]) -> Table:
    """Latency of each method: appendix E's columns."""
    reported = {r["method"]: r for r in paper.table("efficiency")}
    full = result["rows"][0]["total"]
    lines = []
    for row in result["rows"]:
        theirs = reported.get(row["method"].split("@")[0], {})
        lines.append((
            row["method"], f"{row['realised']:.2f}", f"{row['compression']:.2f} +- {row['compression_sd']:.2f}",
            theirs.get("compression_ms", ""), f"{row['total']:.1f} +- {row['total_sd']:.1f}", f"{row['p95']:.1f}",
            f"{row['total'] / full:.3f}", theirs.get("index_over_full", ""), f"{row['megabytes']:.0f}",
        ))  # fmt: skip
    heads = (
        "method", "vectors kept, %", "compression, ms", "paper's", "total, ms", "P95, ms", "index / full", "paper's",
        "peak MB",
    )  # fmt: skip
    title = (
        f"{result['model']} on {result['device']} in {result['dtype'].removeprefix('torch.')}: {result['pages']} pages "
        f"of {result['corpus']}, {result['passes']} passes"
    )
    note = "The paper's figures are ColQwen2.5's on an A800 GPU, ViDoRe v2, ratio 0.1."
    if result["calibrated_on"]:
        note += f" DocPruner's threshold is from {result['calibrated_on']}."
    if "layer_settings" in result:
        note += f" Layer settings: {result['layer_settings']}."
    return Table(title, heads, lines, frozenset(i for i, line in enumerate(lines) if "anchorfold@" in line[0]), note)
