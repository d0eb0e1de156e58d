"""Results of many runs: data sets combined to suites, suites to the paper's averages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from anchorfold.compressors import FullIndex
from anchorfold.evaluation import paper
from anchorfold.evaluation.benchmarks import BENCHMARKS
from anchorfold.evaluation.calibration import CALIBRATION_FILE, Calibration
from anchorfold.evaluation.efficiency import EFFICIENCY_FILE
from anchorfold.evaluation.methods import ANCHORFOLD, NORMALIZED_BASELINES, paper_methods
from anchorfold.evaluation.results import RESULTS_FILE, Row, macro_average
from anchorfold.evaluation.tables import ABLATION_FILE, KEYS


@dataclass(frozen=True)
class Suite:
    """Results of one backbone on a benchmark or on a local corpus.

    `sets` are the results of its data sets by their names; `rows` their macro-averages, of the methods that all of
    them have.
    """

    name: str
    benchmark: str | None
    experiment: str
    model: str
    family: str
    fingerprint: str
    sets: dict[str, dict[str, Any]]
    rows: list[Row]

    @property
    def complete(self) -> bool:
        """Whether all data sets of the paper's suite were evaluated."""
        return self.benchmark is not None and len(self.sets) == paper.suite_size(self.benchmark)

    @property
    def vectors(self) -> float:
        """Mean vectors per page of the full index."""
        vectors, pages = (sum(int(s[name]) for s in self.sets.values()) for name in ("full_vectors", "pages"))
        return vectors / max(pages, 1)

    @property
    def pages(self) -> int:
        """Of all data sets."""
        return sum(s["pages"] for s in self.sets.values())

    @property
    def queries(self) -> int:
        """Of all data sets."""
        return sum(s["queries_asked"] for s in self.sets.values())

    def row(self, method: str, ratio: float | None = None, cap: int | None = None) -> Row | None:
        """Return the macro-average of a method at a budget, or None."""
        return next((r for r in self.rows if (r.method, r.ratio, r.cap) == (method, ratio, cap)), None)

    def best_baseline(self, ratio: float, names: Sequence[str]) -> Row | None:
        """Return the best of these methods at a ratio, without AnchorFold."""
        rows = [self.row(name, ratio) for name in names if name != ANCHORFOLD]
        return max((r for r in rows if r is not None), key=lambda r: r.ndcg_retention, default=None)

    @property
    def ratios(self) -> list[float]:
        """Ratios below 1, largest first."""
        return sorted({r.ratio for r in self.rows if r.ratio is not None and r.method != FullIndex.name}, reverse=True)


@dataclass(frozen=True)
class ResultCollection:
    """All results in a folder."""

    suites: list[Suite]
    ablations: list[dict[str, Any]]
    calibrations: list[tuple[dict[str, Any], Calibration]]
    efficiencies: list[dict[str, Any]]


def read_results(folder: Path) -> ResultCollection:
    """Read the results of `eval`, `ablate`, `calibrate` and `bench` in a folder."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for results in _read(folder, RESULTS_FILE):
        if results.get("experiment", "methods") not in KEYS:  # data sets of an ablation are in its own file
            suite = results["benchmark"] or f"corpus {results['corpus']}"
            groups.setdefault((suite, results["experiment"], results["fingerprint"]), []).append(results)
    calibrations = [(data, Calibration.from_json(data)) for data in _read(folder, CALIBRATION_FILE)]
    suites = [combine_datasets(group) for _, group in sorted(groups.items())]
    return ResultCollection(suites, _read(folder, ABLATION_FILE), calibrations, _read(folder, EFFICIENCY_FILE))


def combine_datasets(results: Sequence[dict[str, Any]]) -> Suite:
    """Combine results of one model on the data sets of a benchmark."""
    first = results[0]
    order = list(BENCHMARKS.get(first["benchmark"] or "", ()))
    by_order = sorted(results, key=lambda r: order.index(r["corpus"]) if r["corpus"] in order else len(order))
    sets = {r["corpus"]: r for r in by_order}
    shared = [
        row["label"] for row in first["rows"]
        if all(any(row["label"] == other["label"] for other in r["rows"]) for r in sets.values())
    ]  # fmt: skip
    tables = [[Row(**row) for row in r["rows"] if row["label"] in shared] for r in sets.values()]
    ordered = [sorted(rows, key=lambda row: shared.index(row.label)) for rows in tables]
    benchmark = first["benchmark"]
    rows = ordered[0] if benchmark is None else macro_average(ordered, benchmark, first["family"])
    return Suite(
        benchmark or first["corpus"], benchmark, first["experiment"], first["model"], first["family"],
        first["fingerprint"], sets, rows,
    )  # fmt: skip


@dataclass(frozen=True)
class MeanRetention:
    """Means over backbone-suite pairs at a ratio: ours and the paper's for the same pairs.

    `margin` is relative to the best of the paper's baselines, `strong_margin` to the best normalised one.
    """

    ratio: float
    pairs: int
    retention: float
    margin: float | None
    strong_margin: float | None
    paper_retention: float | None
    paper_margin: float | None


def mean_retentions(suites: Sequence[Suite], benchmarks: Sequence[str]) -> list[MeanRetention]:
    """Compute mean retention over complete suites, and the mean margin to the best baseline of each."""
    complete = [s for s in suites if s.complete and s.benchmark in benchmarks and s.experiment == "methods"]
    lines = []
    for ratio in sorted({r for s in complete for r in s.ratios}, reverse=True):
        ours = [(s, row) for s in complete if (row := s.row(ANCHORFOLD, ratio)) is not None]
        if not ours:
            continue
        theirs = [paper_pair(str(s.benchmark), s.family, ratio) for s, _ in ours]
        known = [pair for pair in theirs if pair is not None]
        same = len(known) == len(ours)
        lines.append(
            MeanRetention(
                ratio, len(ours), fmean(row.ndcg_retention for _, row in ours),
                mean_margin(ours, paper_methods()), mean_margin(ours, NORMALIZED_BASELINES),
                fmean(r for r, _ in known) if same else None, fmean(m for _, m in known) if same else None,
            )
        )  # fmt: skip
    return lines


def mean_margin(ours: Sequence[tuple[Suite, Row]], names: Sequence[str]) -> float | None:
    """Return the mean lead of rows over the best of these methods in their suites; None if a suite has none of them."""
    baselines = [suite.best_baseline(row.ratio or 1.0, names) for suite, row in ours]
    leads = [row.ndcg_retention - b.ndcg_retention for (_, row), b in zip(ours, baselines, strict=True) if b]
    return fmean(leads) if len(leads) == len(ours) else None


def paper_pair(benchmark: str, family: str, ratio: float) -> tuple[float, float] | None:
    """Return the paper's retention of a backbone-suite pair and its margin to the best baseline, or None."""
    rows = {
        r["method"]: float(r["retention"]) for r in paper.table("benchmarks")
        if (r["benchmark"], r["backbone"]) == (benchmark, family) and float(r["ratio"]) == ratio
    }  # fmt: skip
    if ANCHORFOLD not in rows:
        return None
    return rows[ANCHORFOLD], rows[ANCHORFOLD] - max(value for name, value in rows.items() if name != ANCHORFOLD)


def paper_mean_retention(benchmarks: Sequence[str], ratio: float) -> tuple[float, float] | None:
    """Return the paper's mean retention and margin over all its backbones, or None."""
    families = dict.fromkeys(r["backbone"] for r in paper.table("benchmarks"))
    pairs = [paper_pair(b, f, ratio) for b in benchmarks for f in families]
    known = [p for p in pairs if p is not None]
    return (fmean(r for r, _ in known), fmean(m for _, m in known)) if known else None


def _read(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.rglob(name))]
