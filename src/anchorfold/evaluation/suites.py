"""Results of many runs, put together: data sets to suites, suites to a paper."""

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
from anchorfold.evaluation.methods import OURS, paper_methods
from anchorfold.evaluation.results import RESULTS_FILE, Row, macro_average
from anchorfold.evaluation.validation import ABLATION_FILE, KEYS


@dataclass(frozen=True)
class Suite:
    """One backbone on one benchmark, or on a corpus that belongs to none.

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
        """Whether all data sets of the paper's suite are there."""
        return self.benchmark is not None and len(self.sets) == paper.suite_size(self.benchmark)

    @property
    def vectors(self) -> float:
        """Of a page in the full index, on average."""
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
        """A method's macro-average at a budget, if it was measured."""
        return next((r for r in self.rows if (r.method, r.ratio, r.cap) == (method, ratio, cap)), None)

    def best_baseline(self, ratio: float) -> Row | None:
        """The paper's training-free baseline that keeps most at a ratio."""
        rows = [self.row(name, ratio) for name in paper_methods() if name != OURS]
        return max((r for r in rows if r is not None), key=lambda r: r.ndcg_retention, default=None)

    @property
    def ratios(self) -> list[float]:
        """All ratios below 1, the largest first."""
        return sorted({r.ratio for r in self.rows if r.ratio is not None and r.method != FullIndex.name}, reverse=True)


@dataclass(frozen=True)
class Findings:
    """Everything below a folder of results."""

    suites: list[Suite]
    ablations: list[dict[str, Any]]
    calibrations: list[tuple[dict[str, Any], Calibration]]
    efficiencies: list[dict[str, Any]]


def read_findings(folder: Path) -> Findings:
    """Read what `eval`, `ablate`, `calibrate` and `bench` wrote below a folder."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for results in _read(folder, RESULTS_FILE):
        if results.get("experiment", "methods") not in KEYS:  # data sets of an ablation are in its own file
            suite = results["benchmark"] or f"corpus {results['corpus']}"
            groups.setdefault((suite, results["experiment"], results["fingerprint"]), []).append(results)
    calibrations = [(data, Calibration.from_json(data)) for data in _read(folder, CALIBRATION_FILE)]
    suites = [put_together(group) for _, group in sorted(groups.items())]
    return Findings(suites, _read(folder, ABLATION_FILE), calibrations, _read(folder, EFFICIENCY_FILE))


def put_together(results: Sequence[dict[str, Any]]) -> Suite:
    """Data sets of one benchmark with one model as a suite, in the benchmark's order."""
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
class Headline:
    """Means over backbone-suite pairs at one ratio, in percent and points: ours, and the paper's for the same pairs."""

    ratio: float
    pairs: int
    retention: float
    margin: float | None
    paper_retention: float | None
    paper_margin: float | None


def headlines(suites: Sequence[Suite], benchmarks: Sequence[str]) -> list[Headline]:
    """Mean retention over the complete suites among `benchmarks`, and the mean margin to each one's best baseline."""
    complete = [s for s in suites if s.complete and s.benchmark in benchmarks and s.experiment == "methods"]
    lines = []
    for ratio in sorted({r for s in complete for r in s.ratios}, reverse=True):
        ours = [(s, row) for s in complete if (row := s.row(OURS, ratio)) is not None]
        if not ours:
            continue
        baselines = [s.best_baseline(ratio) for s, _ in ours]
        margins = [row.ndcg_retention - b.ndcg_retention for (_, row), b in zip(ours, baselines, strict=True) if b]
        theirs = [paper_pair(str(s.benchmark), s.family, ratio) for s, _ in ours]
        known = [pair for pair in theirs if pair is not None]
        same = len(known) == len(ours)
        lines.append(
            Headline(
                ratio, len(ours), fmean(row.ndcg_retention for _, row in ours),
                fmean(margins) if len(margins) == len(ours) else None,
                fmean(r for r, _ in known) if same else None, fmean(m for _, m in known) if same else None,
            )
        )  # fmt: skip
    return lines


def paper_pair(benchmark: str, family: str, ratio: float) -> tuple[float, float] | None:
    """The paper's retention of one backbone-suite pair, and its margin to the best baseline; None if it has none."""
    rows = {
        r["method"]: float(r["retention"]) for r in paper.table("benchmarks")
        if (r["benchmark"], r["backbone"]) == (benchmark, family) and float(r["ratio"]) == ratio
    }  # fmt: skip
    if OURS not in rows:
        return None
    return rows[OURS], rows[OURS] - max(value for name, value in rows.items() if name != OURS)


def paper_headline(benchmarks: Sequence[str], ratio: float) -> tuple[float, float] | None:
    """The paper's own mean retention and margin over all its backbones; None at a ratio that it does not have."""
    families = dict.fromkeys(r["backbone"] for r in paper.table("benchmarks"))
    pairs = [paper_pair(b, f, ratio) for b in benchmarks for f in families]
    known = [p for p in pairs if p is not None]
    return (fmean(r for r, _ in known), fmean(m for _, m in known)) if known else None


def _read(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.rglob(name))]
