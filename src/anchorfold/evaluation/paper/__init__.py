"""Tables of the paper as data: `table("benchmarks")` and others in `TABLES`.

Methods have the names of our compressors: the paper's clustering and pooling store arithmetic means, which are
`semantic-clustering-raw` and `1d-pooling-raw`.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

TABLES = ("benchmarks", "datasets", "ablation", "trained", "calibration", "windows", "depths", "efficiency")

TRAINED_BACKBONE, TRAINED_CAP = "colqwen2.5", 128  # what trained compression is compared on


@cache
def table(name: str) -> list[dict[str, str]]:
    """Read the rows of a table as text: NDCG@5 and retention in percent, ratios in (0, 1], windows inclusive."""
    if name not in TABLES:
        raise ValueError(f"the paper has no table called {name!r}: choose one of {', '.join(TABLES)}.")
    return list(csv.DictReader((files(__name__) / f"{name}.csv").read_text("utf-8").splitlines()))


def reported(
    benchmark: str, backbone: str, method: str, ratio: float, dataset: str | None = None, column: str = "ndcg"
) -> float | None:
    """Return the paper's figure in percent for a benchmark or a data set; None if the paper has no such cell.

    `column` is `ndcg` for NDCG@5, or `retention` for its share of the full index's.
    """
    for row in table("benchmarks" if dataset is None else "datasets"):
        same = (row["benchmark"], row["backbone"], row["method"]) == (benchmark, backbone, method)
        if same and float(row["ratio"]) == ratio and (dataset is None or row["dataset"] == dataset):
            return float(row[column])
    return None


def reported_cap(benchmark: str, backbone: str, method: str, cap: int, dataset: str = "average") -> float | None:
    """Return the paper's NDCG@5 in percent at a fixed number of vectors (appendix C: ColQwen2.5 at 128)."""
    if (backbone, cap) != (TRAINED_BACKBONE, TRAINED_CAP) or method not in ("agc", "anchorfold"):
        return None
    rows = (row for row in table("trained") if (row["benchmark"], row["dataset"]) == (benchmark, dataset))
    return next((float(row[method]) for row in rows), None)


def suite_size(benchmark: str) -> int | None:
    """Return the number of data sets in a suite of the paper; None for other suites."""
    return len({row["dataset"] for row in table("datasets") if row["benchmark"] == benchmark}) or None
