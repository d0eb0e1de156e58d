"""Figure: NDCG@5 retention against indexing time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anchorfold.compressors import FullIndex, compressor_title
from anchorfold.evaluation.figures.style import import_pyplot, point_style
from anchorfold.evaluation.methods import ANCHORFOLD
from anchorfold.evaluation.result_sets import Suite


def draw_latency(suite: Suite, timed: Mapping[str, Any], path: Path) -> None:
    """Draw one point per method that was evaluated and timed at the same ratio."""
    plt = import_pyplot()
    retained = {row.label: row.ndcg_retention for row in suite.rows}
    full = next(row["total"] for row in timed["rows"] if row["method"].startswith(f"{FullIndex.name}@"))
    figure, panel = plt.subplots(figsize=(6.4, 4.2))
    for row in timed["rows"]:
        if row["method"] in retained:
            name = row["method"].split("@")[0]
            panel.errorbar(row["total"] / full, retained[row["method"]], xerr=row["total_sd"] / full, ms=9, capsize=3,
                           ls="", label=compressor_title(name), **point_style(name))  # fmt: skip
    panel.legend(fontsize=9, loc="center left", bbox_to_anchor=(1.02, 0.5))
    panel.set(xlabel="indexing time / full index", ylabel="NDCG@5 retained, %")
    cost = {row["method"]: row["total"] / full for row in timed["rows"]}
    panel.set_title(latency_title(suite, cost, retained))
    panel.margins(0.15)
    figure.savefig(path)
    plt.close(figure)


def latency_title(suite: Suite, cost: Mapping[str, float], retained: Mapping[str, float]) -> str:
    """Return the title: cost and retention of AnchorFold."""
    ours = next((m for m in cost if m.startswith(f"{ANCHORFOLD}@") and m in retained), None)
    if ours is None:
        return f"{suite.name}: up and left is better"
    return f"{suite.name}: AnchorFold adds {100 * (cost[ours] - 1):.1f} % to indexing, keeps {retained[ours]:.1f} %"
