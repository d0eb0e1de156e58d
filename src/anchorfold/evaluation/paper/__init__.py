"""All figures that the paper reports, as data: `table("benchmarks")` and its siblings."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

TABLES = ("benchmarks", "datasets", "ablation", "trained", "calibration", "windows", "depths", "efficiency")

TRAINED_BACKBONE, TRAINED_CAP = "colqwen2.5", 128  # what trained compression is compared on


@cache
def table(name: str) -> list[dict[str, str]]:
    """A table's rows as text. NDCG@5 and retention are in percent, ratios from 0 to 1, windows first-last inclusive."""
    if name not in TABLES:
        raise ValueError(f"the paper has no table called {name!r}: choose one of {', '.join(TABLES)}.")
    return list(csv.DictReader((files(__name__) / f"{name}.csv").read_text("utf-8").splitlines()))


def reported(benchmark: str, backbone: str, method: str, ratio: float, dataset: str | None = None) -> float | None:
    """NDCG@5 in percent of one cell, of a benchmark or of one of its data sets; None if the paper has no such cell."""
    for row in table("benchmarks" if dataset is None else "datasets"):
        same = (row["benchmark"], row["backbone"], row["method"]) == (benchmark, backbone, method)
        if same and float(row["ratio"]) == ratio and (dataset is None or row["dataset"] == dataset):
            return float(row["ndcg"])
    return None


def reported_cap(benchmark: str, backbone: str, method: str, cap: int, dataset: str = "average") -> float | None:
    """NDCG@5 in percent at a fixed number of vectors (appendix C: ColQwen2.5 at 128), of a data set or on average."""
    if (backbone, cap) != (TRAINED_BACKBONE, TRAINED_CAP) or method not in ("agc", "anchorfold"):
        return None
    rows = (row for row in table("trained") if (row["benchmark"], row["dataset"]) == (benchmark, dataset))
    return next((float(row[method]) for row in rows), None)


def suite_size(benchmark: str) -> int | None:
    """Data sets of a suite of the paper; None if it is none."""
    return len({row["dataset"] for row in table("datasets") if row["benchmark"] == benchmark}) or None
