"""How much each method keeps at each ratio: of the ranking, and of the score; and effectiveness against storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anchorfold.compressors import title_of
from anchorfold.evaluation.figures.style import look_of, plotting

FLOOR = 50.0  # percent; what lies below is left out of the retention panels and stands in the tables


def by_method(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Rows with a ratio below 1, by method, the largest ratio first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda r: -(r["ratio"] or 0)):
        if row["ratio"] is not None and row["method"] != "none":
            found.setdefault(row["method"], []).append(row)
    return found


def best_at(rows: list[dict[str, Any]], ratio: float, value: str) -> str:
    """The method that keeps most at a ratio."""
    there = [r for r in rows if r["ratio"] == ratio and r["method"] != "none"]
    return title_of(best["method"]) if (best := max(there, key=lambda r: r[value], default=None)) else ""


def draw_retention(results: dict[str, Any], path: Path) -> None:
    """Two panels on a logarithmic ratio: NDCG@5 kept, and score kept."""
    plt = plotting()
    figure, panels = plt.subplots(1, 2, figsize=(10.5, 4.2))
    smallest = min((r["ratio"] for r in results["rows"] if r["ratio"]), default=1.0)
    for panel, value, name in zip(panels, ("kept", "score_kept"), ("NDCG@5", "score"), strict=True):
        for method, rows in by_method(results["rows"]).items():
            width = 2.4 if method == "anchorfold" else 1.3
            ratios, values = [r["ratio"] for r in rows], [r[value] for r in rows]
            panel.plot(ratios, values, lw=width, label=title_of(method), **look_of(method))
        panel.axhline(100, color="#000000", lw=0.8, ls=":")
        panel.set_xscale("log")
        ticks = sorted({r["ratio"] for r in results["rows"] if r["ratio"] and r["ratio"] < 1}, reverse=True)
        panel.set_xticks(ticks, [f"{1 / t:.0f}x" for t in ticks], minor=False)
        panel.minorticks_off()
        panel.invert_xaxis()
        winner = best_at(results["rows"], smallest, value)
        panel.set(
            xlabel="times smaller",
            ylabel=f"{name} kept, %",
            title=f"{winner} keeps the most {name} at {1 / smallest:.0f}x",
        )
        if min(r[value] for r in results["rows"]) < FLOOR:
            # A method that keeps almost nothing would press all others into one line.
            panel.set_ylim(bottom=FLOOR)
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=4)
    figure.suptitle(f"{results['corpus']} with {results['model']}: {results['pages']:,} pages, {results['queries_asked']:,} queries")  # fmt: skip  # noqa: E501
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def mean_vector(results: dict[str, Any]) -> dict[str, Any] | None:
    """The single-vector index, if it was measured: all vectors of a page pooled into one."""
    return next((r for r in results["rows"] if r["cap"] == 1 and r["method"] == "1d-pooling"), None)


def storage_title(results: dict[str, Any]) -> str:
    """What the picture shows: the smallest index of AnchorFold against one mean vector, or against the full index."""
    ours = by_method(results["rows"]).get("anchorfold")
    if not ours:
        return f"{results['corpus']}: NDCG@5 against storage"
    small = ours[-1]
    title = f"{results['corpus']}: AnchorFold at {small['times_smaller']:.0f}x keeps {small['kept']:.0f} % of NDCG@5"
    mean = mean_vector(results)
    return title if mean is None else f"{title},\na single mean vector {mean['kept']:.0f} %"


def draw_storage(results: dict[str, Any], path: Path) -> None:
    """NDCG@5 against vectors a page: one vector a page is the single-vector index."""
    plt = plotting()
    figure, panel = plt.subplots(figsize=(6.4, 4.4))
    pages = max(results["pages"], 1)
    full = next(r for r in results["rows"] if r["label"] == "none@1")
    vectors = results["full_vectors"] / pages
    panel.axhline(full["ndcg"], color="#000000", lw=0.8, ls=":", label=f"full index, {vectors:.0f} vectors a page")
    for method, rows in by_method(results["rows"]).items():
        xs = [vectors / r["times_smaller"] for r in rows]
        panel.plot(xs, [r["ndcg"] for r in rows], **look_of(method),
                   lw=2.4 if method == "anchorfold" else 1.3, label=title_of(method))  # fmt: skip
    if (mean := mean_vector(results)) is not None:
        panel.plot(1, mean["ndcg"], "k*", ms=12, label="one mean vector a page")
    panel.set_xscale("log")
    panel.set(xlabel="storage, in vectors a page (1 = a single-vector index)", ylabel="NDCG@5",
              title=storage_title(results))  # fmt: skip
    panel.legend(fontsize=9)
    figure.savefig(path)
    plt.close(figure)
