"""Figures of a suite: retention per ratio, and NDCG@5 against storage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anchorfold.compressors import FullIndex, Pooling1D, compressor_title
from anchorfold.evaluation.figures.style import import_pyplot, line_style, shared_legend
from anchorfold.evaluation.methods import ANCHORFOLD
from anchorfold.evaluation.result_sets import Suite
from anchorfold.evaluation.results import Row

FLOOR = 50.0  # percent; lower values are only in the tables


def by_method(suite: Suite) -> dict[str, list[Row]]:
    """Group rows with a ratio below 1 by method, largest ratio first."""
    lines: dict[str, list[Row]] = {}
    for row in sorted(suite.rows, key=lambda r: -(r.ratio or 0)):
        if row.ratio is not None and row.method != FullIndex.name:
            lines.setdefault(row.method, []).append(row)
    return lines


def draw_retention(suites: Sequence[Suite], path: Path) -> None:
    """Draw NDCG@5 retention and score retention per ratio, one row of panels per backbone."""
    plt = import_pyplot()
    figure, panels = plt.subplots(len(suites), 2, figsize=(10.5, 4.0 * len(suites)), squeeze=False)
    for suite, pair in zip(suites, panels, strict=True):
        for panel, value, name in zip(pair, ("ndcg_retention", "score_retention"), ("NDCG@5", "score"), strict=True):
            _retention_panel(panel, suite, value, name)
    shared_legend(figure, panels.flat)
    figure.suptitle(figure_title(suites))
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _retention_panel(panel: Any, suite: Suite, value: str, name: str) -> None:
    for method, rows in by_method(suite).items():
        panel.plot([r.ratio for r in rows], [getattr(r, value) for r in rows], label=compressor_title(method), **line_style(method))  # fmt: skip  # noqa: E501
    panel.axhline(100, color="#000000", lw=0.8, ls=":")
    panel.set_xscale("log")
    panel.set_xticks(suite.ratios, [f"{1 / ratio:.0f}x" for ratio in suite.ratios], minor=False)
    panel.minorticks_off()
    panel.invert_xaxis()
    panel.set(
        xlabel="compression ratio (vectors)",
        ylabel=f"{name} retained, %",
        title=f"{suite.model}: {best_method_title(suite, value, name)}",
    )
    if min(getattr(r, value) for r in suite.rows) < FLOOR:
        # Very low values would compress the scale.
        panel.set_ylim(bottom=FLOOR)


def best_method_title(suite: Suite, value: str, name: str) -> str:
    """Return a title that names the best method at the smallest ratio."""
    if not suite.ratios:
        return name
    smallest = suite.ratios[-1]
    rows = [r for r in suite.rows if r.ratio == smallest]
    best = max(rows, key=lambda r: getattr(r, value))
    return f"{compressor_title(best.method)} retains the most {name} at {1 / smallest:.0f}x"


def figure_title(suites: Sequence[Suite]) -> str:
    """Return a title with the size of the evaluation."""
    first = suites[0]
    sets = f"{len(first.sets)} data sets, " if len(first.sets) > 1 else ""
    return f"{first.name}: {sets}{first.pages:,} pages, {first.queries:,} queries"


def storage_title(suite: Suite) -> str:
    """Return a title that compares AnchorFold's smallest index with a single mean vector per page."""
    ours = by_method(suite).get(ANCHORFOLD)
    if not ours:
        return f"{suite.model}: NDCG@5 against storage"
    small = ours[-1]
    title = f"{suite.model}: AnchorFold at {100 / small.realised:.0f}x keeps {small.ndcg_retention:.0f} % of NDCG@5"
    mean = suite.row(Pooling1D.name, cap=1)
    return title if mean is None else f"{title},\na single mean vector {mean.ndcg_retention:.0f} %"


def draw_storage(suites: Sequence[Suite], path: Path) -> None:
    """Draw NDCG@5 against storage relative to one vector per page, one panel per backbone (figure 1 of the paper).

    Points of AnchorFold and of the full index are labelled with the share of vectors that they keep.
    """
    plt = import_pyplot()
    figure, panels = plt.subplots(1, len(suites), figsize=(6.2 * len(suites), 4.4), squeeze=False)
    for suite, panel in zip(suites, panels.flat, strict=True):
        full = suite.row(FullIndex.name, 1.0)
        if full is not None:
            panel.axhline(full.ndcg, color="#000000", lw=0.8, ls=":", label="full index")
            panel.plot(suite.vectors, full.ndcg, "k.", ms=8)
        for method, rows in by_method(suite).items():
            storage = [suite.vectors * r.realised / 100 for r in rows]
            panel.plot(storage, [r.ndcg for r in rows], label=compressor_title(method), **line_style(method))
            if method == ANCHORFOLD:
                points = [(x, r.ndcg, f"{r.realised:.0f} %") for x, r in zip(storage, rows, strict=True)]
                points += [(suite.vectors, full.ndcg, "100 %")] if full is not None else []
                for x, y, text in points:
                    panel.annotate(text, (x, y), (0, 7), textcoords="offset points", ha="center", fontsize=9)
        mean = suite.row(Pooling1D.name, cap=1)
        if mean is not None:
            panel.plot(1, mean.ndcg, "k*", ms=12, label="one mean vector per page")
        panel.set_xscale("log")
        ticks = [1.0, *(suite.vectors * ratio for ratio in suite.ratios), suite.vectors]
        panel.set_xticks(ticks, [f"{tick:.0f}x" for tick in ticks], minor=False)
        panel.minorticks_off()
        panel.set(
            xlabel="storage relative to a single vector per page (labels: vectors kept)", ylabel="NDCG@5",
            title=storage_title(suite),
        )  # fmt: skip
    shared_legend(figure, panels.flat)
    figure.suptitle(figure_title(suites))
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
