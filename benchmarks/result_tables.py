"""Print the tables of `docs/research/results.md` and of the README from a results directory.

M=anchorfold,semantic-clustering-raw,semantic-clustering,focus-clustering,spread-fold,sap,random-anchors
M=$M,1d-pooling-raw,1d-pooling,1d-pooling@cap1
anchorfold eval corpora/dev_debian --methods $M --ratios 0.2,0.1,0.05
anchorfold eval corpora/dev_azure --methods $M --ratios 0.2,0.1,0.05
python -m benchmarks.result_tables results
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from anchorfold.evaluation.methods import ANCHORFOLD, FULL, SINGLE_VECTOR
from anchorfold.evaluation.metrics import paired_difference
from anchorfold.evaluation.results import RESULTS_FILE

METHODS = (
    ANCHORFOLD, "semantic-clustering-raw", "semantic-clustering", "focus-clustering", "spread-fold", "sap",
    "random-anchors", "1d-pooling-raw", "1d-pooling",
)  # fmt: skip
IN_README = (*METHODS[:3], "sap")
RATIOS = (0.2, 0.1, 0.05)
TIMES = [f"{1 / ratio:.0f}x" for ratio in RATIOS]


def title(method: str) -> str:
    """Return a method's cell; the paper's definitions of two baselines are marked."""
    return f"`{method}`" + (" (paper)" if method.endswith("-raw") else "")


def print_table(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> None:
    """Print a Markdown table."""
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for line in lines:
        print(f"| {' | '.join(line)} |")
    print()


def print_methods(results: dict[str, Any]) -> None:
    """Print NDCG@5 with its interval, its retention and score retention per method and ratio."""
    rows = {row["label"]: row for row in results["rows"]}
    full, single = rows[FULL]["ndcg"], rows[SINGLE_VECTOR]["ndcg"]
    print(f"**{results['corpus']}** (full index {full:.1f}, one mean vector per page {single:.1f})\n")
    lines = []
    for method in METHODS:
        cells = [
            f"{r['ndcg']:.1f} ({r['ndcg_low']:.1f} - {r['ndcg_high']:.1f}), {r['ndcg_retention']:.1f} %, "
            f"{r['score_retention']:.1f} %"
            for r in (rows[f"{method}@{ratio:g}"] for ratio in RATIOS)
        ]
        lines.append([title(method), *cells])
    print_table(["method", *TIMES], lines)


def print_differences(results: dict[str, Any]) -> None:
    """Print AnchorFold minus each method with paired 95 % intervals."""
    queries = results["queries"]
    for value, name in (("ndcg", "NDCG@5"), ("retention", "score retention")):
        lines = []
        for method in METHODS[1:]:
            gaps = (
                paired_difference(queries[f"{ANCHORFOLD}@{ratio:g}"][value], queries[f"{method}@{ratio:g}"][value])
                for ratio in RATIOS
            )
            lines.append(
                [title(method), *(f"{g['difference']:+.1f} ({g['low']:+.1f} to {g['high']:+.1f})" for g in gaps)]
            )
        print_table([f"{results['corpus']}, {name}: AnchorFold minus", *TIMES], lines)


def print_summary(corpora: Sequence[dict[str, Any]]) -> None:
    """Print the README's rows: NDCG@5 in percent of the full index, and score retention."""
    lines = []
    for method in IN_README:
        rows = [r for c in corpora for ratio in RATIOS for r in c["rows"] if r["label"] == f"{method}@{ratio:g}"]
        lines.append([title(method), *(f"{r['ndcg_retention']:.1f} ({r['score_retention']:.1f})" for r in rows)])
    print_table(["", *(f"{c['corpus']} {times}" for c in corpora for times in TIMES)], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    files = sorted(parser.parse_args().results.rglob(RESULTS_FILE), reverse=True)
    corpora = [json.loads(path.read_text()) for path in files]
    for results in corpora:
        print_methods(results)
        print_differences(results)
    print_summary(corpora)


if __name__ == "__main__":
    main()
