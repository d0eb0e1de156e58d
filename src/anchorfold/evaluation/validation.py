"""Ablations, windows, depths, calibration and efficiency as tables, with the paper's figures for the same task."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anchorfold.evaluation import paper
from anchorfold.evaluation.calibration import Calibration, mean_and_error, paired_gaps
from anchorfold.evaluation.results import beside
from anchorfold.evaluation.run_folder import write_json
from anchorfold.evaluation.tables import Table
from anchorfold.evaluation.training_set import TRAINING_SET

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
TASK = "vidore-v2"  # of the paper's ablations and latencies
ELSEWHERE = "The paper's figures are ColQwen2.5's at ratio 0.2: compare their order only."
MIN_PAGES, MIN_WARM_UP, MIN_PASSES = 10, 5, 2  # of latencies that can be compared


def save_ablation(path: Path, result: Mapping[str, Any]) -> None:
    """Write what an ablation measured, in one step."""
    write_json(path, dict(result))


def in_paper(result: Mapping[str, Any]) -> bool:
    """Whether the paper ran the same: the same backbone on the same benchmark at the same ratio."""
    same = (result["family"], result["corpus"]) == (paper.TRAINED_BACKBONE, TASK)
    return same and result["ratio"] == 0.2 and result["data_sets"] == paper.suite_size(TASK)


def table_lines(result: Mapping[str, Any]) -> Table:
    """One ablation: a line per variant, window or depth; with the paper's figures if they are of the same task."""
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
        if reported:
            figure = None if theirs is None else float(theirs["ndcg"])
            line.append(beside(row["ndcg"], figure, 2) if same else "" if figure is None else f"{figure:.2f}")
        lines.append(tuple(line))
    chosen = frozenset(i for i, row in enumerate(result["rows"]) if is_deployed(result, row))
    notes = [ELSEWHERE] if reported and not same else []
    notes += [f"Pairs: {result['pairs']}."] if result["pairs"] else []
    notes += [f"Layer settings: {result['layer_settings']}."] if "layer_settings" in result else []
    title = (
        f"{result['ablation']} on {Path(result['corpus']).name} with {result['model']}, ratio {result['ratio']:g}; "
        f"full index {result['full']:.2f}"
    )
    return Table(title, heads, lines, chosen, " ".join(notes))


def is_deployed(result: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a row is the configuration that the backbone is used with."""
    if result["ablation"] == "variants":
        return bool(row["name"] == "anchorfold")
    if result["ablation"] == "depths":
        return bool(row["name"] == f"K={result['steps']}")
    return bool(row["window"] == result["chosen"])


def calibration_table(calibration: Calibration, family: str, pairs: str) -> Table:
    """The joint candidates, one per depth: retention, and the paired gap to the best.

    Args:
        calibration: the result.
        family: of the model.
        pairs: their source; the paper's retention is shown if it used the same.
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


def efficiency_table(result: Mapping[str, Any]) -> Table:
    """Latency of each method: appendix E's columns; with the paper's figures if they are of the same task."""
    reported = {r["method"]: r for r in paper.table("efficiency")} if result["corpus"] == TASK else {}
    full = result["rows"][0]["total"]
    lines = []
    for row in result["rows"]:
        theirs = reported.get(row["method"].split("@")[0], {})
        lines.append((
            row["method"], f"{row['realised']:.2f}", f"{row['compression']:.2f} +- {row['compression_sd']:.2f}",
            *([theirs.get("compression_ms", "")] if reported else []),
            f"{row['total']:.1f} +- {row['total_sd']:.1f}", f"{row['p95']:.1f}", f"{row['total'] / full:.3f}",
            *([theirs.get("index_over_full", "")] if reported else []), f"{row['megabytes']:.0f}",
        ))  # fmt: skip
    theirs_head = ["paper's"] if reported else []
    heads = (
        "method", "vectors kept, %", "compression, ms", *theirs_head, "total, ms", "P95, ms", "index / full",
        *theirs_head, "peak MB",
    )  # fmt: skip
    title = (
        f"{result['model']} on {result['device']} in {result['dtype'].removeprefix('torch.')}: {result['pages']} pages "
        f"of {result['corpus']}, {result['passes']} passes"
    )
    notes = [too_small(result)]
    notes += ["The paper's figures are ColQwen2.5's on an A800 GPU, ratio 0.1."] if reported else []
    notes += [f"DocPruner's threshold is from {result['calibrated_on']}."] if result["calibrated_on"] else []
    notes += [f"Layer settings: {result['layer_settings']}."] if "layer_settings" in result else []
    ours = frozenset(i for i, line in enumerate(lines) if "anchorfold@" in line[0])
    return Table(title, heads, lines, ours, " ".join(filter(None, notes)))


def too_small(result: Mapping[str, Any]) -> str:
    """Return a warning if so few pages were timed that chance decides, else an empty string."""
    sizes = (result["pages"], result.get("warm_up", MIN_WARM_UP), result["passes"])
    if all(size >= least for size, least in zip(sizes, (MIN_PAGES, MIN_WARM_UP, MIN_PASSES), strict=True)):
        return ""
    return (
        f"These latencies are not reliable: {sizes[0]} pages, {sizes[1]} warm-up pages, {sizes[2]} passes. Use at "
        f"least --pages {MIN_PAGES} --warm-up {MIN_WARM_UP} --passes {MIN_PASSES}; the paper uses 200, 30 and 3."
    )
