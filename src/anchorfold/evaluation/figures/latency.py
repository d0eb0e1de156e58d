"""Fidelity against what indexing costs: NDCG@5 kept over index / full."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anchorfold.compressors import title_of
from anchorfold.evaluation.figures.style import look_of, plotting


def draw_latency(results: dict[str, Any], timed: list[dict[str, Any]], path: Path) -> None:
    """A point a method that was both evaluated and timed at the same ratio; up and left is better."""
    plt = plotting()
    kept = {r["label"]: r["kept"] for r in results["rows"]}
    full = next(t["total"] for t in timed if t["method"].startswith("none"))
    figure, panel = plt.subplots(figsize=(6, 4.2))
    for each in timed:
        if each["method"] not in kept:
            continue
        name = each["method"].split("@")[0]
        x, y = each["total"] / full, kept[each["method"]]
        panel.errorbar(x, y, xerr=each["total_sd"] / full, **look_of(name),
                       ms=9, capsize=3, ls="", label=title_of(name))  # fmt: skip
    panel.legend(fontsize=9, loc="center left", bbox_to_anchor=(1.02, 0.5))
    panel.set(xlabel="indexing time / full index", ylabel="NDCG@5 kept, %")
    panel.set_title(latency_title(results, {t["method"]: t["total"] / full for t in timed}, kept))
    panel.margins(0.15)
    figure.savefig(path)
    plt.close(figure)


def latency_title(results: dict[str, Any], cost: dict[str, float], kept: dict[str, float]) -> str:
    """What AnchorFold costs and keeps; up and left is better."""
    ours = next((m for m in cost if m.startswith("anchorfold@") and m in kept), None)
    if ours is None:
        return f"{results['corpus']}: up and left is better"
    return f"{results['corpus']}: AnchorFold adds {100 * (cost[ours] - 1):.1f} % to indexing, keeps {kept[ours]:.1f} %"
