"""Results of an evaluation: rows, averages and the results file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from anchorfold import __version__
from anchorfold.evaluation import paper
from anchorfold.evaluation.corpus import Corpus
from anchorfold.evaluation.methods import FULL, Method
from anchorfold.evaluation.metrics import MethodMetrics, interval, paired_difference
from anchorfold.evaluation.run_folder import write_json

RESULTS_FILE = "results.json"


@dataclass(frozen=True)
class Row:
    """Result of a method at a budget.

    NDCG@5, its retention, score retention and the realised share of vectors are in percent. `paper` is the NDCG@5
    that the paper reports for the same cell, if any.
    """

    label: str
    method: str
    ratio: float | None
    cap: int | None
    ndcg: float
    ndcg_low: float
    ndcg_high: float
    ndcg_retention: float
    score_retention: float
    realised: float
    bytes: int
    by_kind: dict[str, float]
    against_full: dict[str, Any]
    paper: float | None


def summarize(
    measured: dict[str, MethodMetrics], methods: Sequence[Method], corpus: Corpus, backbone: str
) -> list[Row]:
    """Summarize metrics as one row per method."""
    full = measured[FULL]
    reference = fmean(full.ndcg.values())
    kinds: dict[str, list[str]] = {}
    for query in corpus.queries:
        kinds.setdefault(query.kind, []).append(query.id)
    rows = []
    for method in methods:
        values = measured[method.label]
        low, high = interval(list(values.ndcg.values()))
        mean = fmean(values.ndcg.values())
        rows.append(
            Row(
                label=method.label, method=method.name, ratio=method.ratio, cap=method.cap,
                ndcg=mean, ndcg_low=low, ndcg_high=high, ndcg_retention=100 * mean / reference if reference else 100.0,
                score_retention=fmean(values.retention.values()) if values.retention else 100.0,
                realised=100 * values.vectors / max(full.vectors, 1), bytes=values.bytes,
                by_kind={k: fmean(values.ndcg[i] for i in ids) for k, ids in kinds.items()},
                against_full=paired_difference(values.ndcg, full.ndcg),
                paper=in_paper(corpus, backbone, method),
            )
        )  # fmt: skip
    return rows


def in_paper(corpus: Corpus, backbone: str, method: Method) -> float | None:
    """Return the paper's NDCG@5 for the same cell."""
    if corpus.benchmark is None:
        return None
    if method.cap is not None:
        return paper.reported_cap(corpus.benchmark, backbone, method.name, method.cap, corpus.name)
    return paper.reported(corpus.benchmark, backbone, method.name, method.ratio or 1.0, corpus.name)


def macro_average(sets: Sequence[Sequence[Row]], benchmark: str, backbone: str) -> list[Row]:
    """Average rows over the data sets of a benchmark; retention is the ratio of means, as in the paper.

    The paper's figures are included only if all data sets of the benchmark were evaluated (`paper.suite_size`).
    """
    full = fmean(rows[0].ndcg for rows in sets)
    complete = len(sets) == paper.suite_size(benchmark)
    averaged = []
    for rows in zip(*sets, strict=True):
        first = rows[0]
        means = {k: fmean(getattr(r, k) for r in rows) for k in ("ndcg", "score_retention", "realised")}
        paper_ndcg = None
        if complete and first.cap is not None:
            paper_ndcg = paper.reported_cap(benchmark, backbone, first.method, first.cap)
        elif complete and first.ratio is not None:
            paper_ndcg = paper.reported(benchmark, backbone, first.method, first.ratio)
        retained = 100 * means["ndcg"] / full if full else 100.0
        averaged.append(
            replace(
                first, **means, ndcg_low=means["ndcg"], ndcg_high=means["ndcg"], ndcg_retention=retained,
                bytes=sum(r.bytes for r in rows), by_kind={}, against_full={}, paper=paper_ndcg,
            )
        )  # fmt: skip
    return averaged


HEADS = ("method", "ratio", "NDCG@5", "95 % interval", "retained", "score retained", "vectors kept", "size", "paper")


def budget_of(row: Mapping[str, Any]) -> str:
    """Format the budget as `0.2` or `cap 128`."""
    return f"cap {row['cap']}" if row["cap"] is not None else f"{row['ratio']:g}"


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Format a row as the columns of `HEADS`."""
    low, high = row["ndcg_low"], row["ndcg_high"]
    return (
        row["method"], budget_of(row), f"{row['ndcg']:.1f}", "" if low == high else f"{low:.1f} - {high:.1f}",
        f"{row['ndcg_retention']:.1f} %", f"{row['score_retention']:.1f} %", f"{row['realised']:.2f} %",
        f"{row['bytes'] / 1e6:.1f} MB", with_paper_figure(row["ndcg"], row["paper"]),
    )  # fmt: skip


def with_paper_figure(ours: float, theirs: float | None, digits: int = 1) -> str:
    """Format the paper's figure and the difference of ours; empty if there is none.

    >>> with_paper_figure(61.0, 60.3)
    '60.3 (+0.7)'
    """
    return "" if theirs is None else f"{theirs:.{digits}f} ({ours - theirs:+.{digits}f})"


def save(path: Path, header: dict[str, Any], rows: Sequence[Row], measured: dict[str, MethodMetrics]) -> None:
    """Write the results file atomically."""
    data = {
        "anchorfold": __version__,
        **header,
        "rows": [vars(r) for r in rows],
        "queries": {k: {"ndcg": m.ndcg, "retention": m.retention} for k, m in measured.items()},
    }
    write_json(path, data)
