"""A suite with all its backbones: what each method retains at each ratio, and NDCG@5 against storage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anchorfold.compressors import FullIndex, Pooling1D, title_of
from anchorfold.evaluation.figures.style import line_style, one_legend, plotting
from anchorfold.evaluation.methods import OURS
from anchorfold.evaluation.results import Row
from anchorfold.evaluation.suites import Suite

FLOOR = 50.0  # percent; what lies below is left out of the retention panels and stands in the tables


def by_method(suite: Suite) -> dict[str, list[Row]]:
    """Rows with a ratio below 1, by method, the largest ratio first."""
    lines: dict[str, list[Row]] = {}
    for row in sorted(suite.rows, key=lambda r: -(r.ratio or 0)):
        if row.ratio is not None and row.method != FullIndex.name:
            lines.setdefault(row.method, []).append(row)
    return lines


def draw_retention(suites: Sequence[Suite], path: Path) -> None:
    """A row a backbone: NDCG@5 retained and score retained, on a logarithmic ratio."""
    plt = plotting()
    figure, panels = plt.subplots(len(suites), 2, figsize=(10.5, 4.0 * len(suites)), squeeze=False)
    for suite, pair in zip(suites, panels, strict=True):
        for panel, value, name in zip(pair, ("ndcg_retention", "score_retention"), ("NDCG@5", "score"), strict=True):
            _retention_panel(panel, suite, value, name)
    one_legend(figure, panels.flat)
    figure.suptitle(suite_title(suites))
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _retention_panel(panel: Any, suite: Suite, value: str, name: str) -> None:
    for method, rows in by_method(suite).items():
        panel.plot([r.ratio for r in rows], [getattr(r, value) for r in rows], label=title_of(method), **line_style(method))  # fmt: skip  # noqa: E501
    panel.axhline(100, color="#000000", lw=0.8, ls=":")
    panel.set_xscale("log")
    panel.set_xticks(suite.ratios, [f"{1 / ratio:.0f}x" for ratio in suite.ratios], minor=False)
    panel.minorticks_off()
    panel.invert_xaxis()
    panel.set(
        xlabel="times smaller", ylabel=f"{name} retained, %", title=f"{suite.model}: {winner(suite, value, name)}"
    )
    if min(getattr(r, value) for r in suite.rows) < FLOOR:
        # A method that keeps almost nothing would press all others into one line.
        panel.set_ylim(bottom=FLOOR)


def winner(suite: Suite, value: str, name: str) -> str:
    """Which method keeps most at the smallest ratio."""
    if not suite.ratios:
        return name
    smallest = suite.ratios[-1]
    rows = [r for r in suite.rows if r.ratio == smallest]
    best = max(rows, key=lambda r: getattr(r, value))
    return f"{title_of(best.method)} keeps the most {name} at {1 / smallest:.0f}x"


def suite_title(suites: Sequence[Suite]) -> str:
    """What was evaluated."""
    first = suites[0]
    sets = f"{len(first.sets)} data sets, " if len(first.sets) > 1 else ""
    return f"{first.name}: {sets}{first.pages:,} pages, {first.queries:,} queries"


def storage_title(suite: Suite) -> str:
    """What the picture shows: the smallest index of AnchorFold against one mean vector, or against the full index."""
    ours = by_method(suite).get(OURS)
    if not ours:
        return f"{suite.model}: NDCG@5 against storage"
    small = ours[-1]
    title = f"{suite.model}: AnchorFold at {100 / small.realised:.0f}x keeps {small.ndcg_retention:.0f} % of NDCG@5"
    mean = suite.row(Pooling1D.name, cap=1)
    return title if mean is None else f"{title},\na single mean vector {mean.ndcg_retention:.0f} %"


def draw_storage(suites: Sequence[Suite], path: Path) -> None:
    """NDCG@5 against vectors a page, a panel a backbone: one vector a page is the single-vector index."""
    plt = plotting()
    figure, panels = plt.subplots(1, len(suites), figsize=(6.2 * len(suites), 4.4), squeeze=False)
    for suite, panel in zip(suites, panels.flat, strict=True):
        full = suite.row(FullIndex.name, 1.0)
        if full is not None:
            panel.axhline(full.ndcg, color="#000000", lw=0.8, ls=":", label="full index")
        for method, rows in by_method(suite).items():
            storage = [suite.vectors * r.realised / 100 for r in rows]
            panel.plot(storage, [r.ndcg for r in rows], label=title_of(method), **line_style(method))
        mean = suite.row(Pooling1D.name, cap=1)
        if mean is not None:
            panel.plot(1, mean.ndcg, "k*", ms=12, label="one mean vector a page")
        panel.set_xscale("log")
        ticks = [*([1.0] if mean is not None else []), *(suite.vectors * ratio for ratio in suite.ratios)]
        panel.set_xticks(ticks, [f"{tick:.0f}" for tick in ticks], minor=False)
        panel.minorticks_off()
        panel.set(
            xlabel=f"storage in vectors a page (1: a single-vector index; full: {suite.vectors:.0f})", ylabel="NDCG@5",
            title=storage_title(suite),
        )  # fmt: skip
    one_legend(figure, panels.flat)
    figure.suptitle(suite_title(suites))
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
