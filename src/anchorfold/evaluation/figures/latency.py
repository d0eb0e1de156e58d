"""Fidelity against what indexing costs: NDCG@5 retained over index / full."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anchorfold.compressors import FullIndex, title_of
from anchorfold.evaluation.figures.style import plotting, point_style
from anchorfold.evaluation.methods import OURS
from anchorfold.evaluation.suites import Suite


def draw_latency(suite: Suite, timed: Mapping[str, Any], path: Path) -> None:
    """A point a method that was both evaluated and timed at the same ratio; up and left is better."""
    plt = plotting()
    retained = {row.label: row.ndcg_retention for row in suite.rows}
    full = next(row["total"] for row in timed["rows"] if row["method"].startswith(f"{FullIndex.name}@"))
    figure, panel = plt.subplots(figsize=(6.4, 4.2))
    for row in timed["rows"]:
        if row["method"] in retained:
            name = row["method"].split("@")[0]
            panel.errorbar(row["total"] / full, retained[row["method"]], xerr=row["total_sd"] / full, ms=9, capsize=3,
                           ls="", label=title_of(name), **point_style(name))  # fmt: skip
    panel.legend(fontsize=9, loc="center left", bbox_to_anchor=(1.02, 0.5))
    panel.set(xlabel="indexing time / full index", ylabel="NDCG@5 retained, %")
    cost = {row["method"]: row["total"] / full for row in timed["rows"]}
    panel.set_title(latency_title(suite, cost, retained))
    panel.margins(0.15)
    figure.savefig(path)
    plt.close(figure)


def latency_title(suite: Suite, cost: Mapping[str, float], retained: Mapping[str, float]) -> str:
    """What AnchorFold costs and keeps; up and left is better."""
    ours = next((m for m in cost if m.startswith(f"{OURS}@") and m in retained), None)
    if ours is None:
        return f"{suite.name}: up and left is better"
    return f"{suite.name}: AnchorFold adds {100 * (cost[ours] - 1):.1f} % to indexing, keeps {retained[ours]:.1f} %"
