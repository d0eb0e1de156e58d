"""What an evaluation found, as a file that reports are made from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from anchorfold import __version__
from anchorfold.evaluation import paper
from anchorfold.evaluation.corpus import Corpus
from anchorfold.evaluation.measure import Measured, compare, interval
from anchorfold.evaluation.methods import FULL, Method

RESULTS_FILE = "results.json"


@dataclass(frozen=True)
class Row:
    """One method under one budget. NDCG@5, its share of the full index's, and score retention are in percent."""

    label: str
    method: str
    ratio: float | None
    cap: int | None
    ndcg: float
    ndcg_low: float
    ndcg_high: float
    kept: float
    score_kept: float
    times_smaller: float
    bytes: int
    by_kind: dict[str, float]
    against_full: dict[str, Any]
    paper: float | None


def summarise(measured: dict[str, Measured], methods: Sequence[Method], corpus: Corpus, backbone: str) -> list[Row]:
    """Rows in the order of the methods."""
    queries = corpus.queries
    full = measured[FULL]
    reference = fmean(full.ndcg.values())
    kinds: dict[str, list[str]] = {}
    for query in queries:
        kinds.setdefault(query.kind, []).append(query.id)
    rows = []
    for method in methods:
        found = measured[method.label]
        low, high = interval(list(found.ndcg.values()))
        mean = fmean(found.ndcg.values())
        rows.append(
            Row(
                label=method.label, method=method.name, ratio=method.ratio, cap=method.cap,
                ndcg=mean, ndcg_low=low, ndcg_high=high, kept=100 * mean / reference if reference else 100.0,
                score_kept=fmean(found.retention.values()) if found.retention else 100.0,
                times_smaller=full.vectors / max(found.vectors, 1), bytes=found.bytes,
                by_kind={k: fmean(found.ndcg[i] for i in ids) for k, ids in kinds.items()},
                against_full=compare(found.ndcg, full.ndcg),
                paper=in_paper(corpus, backbone, method),
            )
        )  # fmt: skip
    return rows


def in_paper(corpus: Corpus, backbone: str, method: Method) -> float | None:
    """The paper's NDCG@5 of the same cell."""
    if corpus.benchmark is None or method.ratio is None:
        return None
    return paper.reported(corpus.benchmark, backbone, method.name, method.ratio, corpus.name)


def macro_average(sets: Sequence[Sequence[Row]], benchmark: str, backbone: str) -> list[Row]:
    """A benchmark's rows: means over its data sets; retention is the ratio of the means, as in the paper."""
    full = fmean(rows[0].ndcg for rows in sets)
    found = []
    for rows in zip(*sets, strict=True):
        first = rows[0]
        means = {k: fmean(getattr(r, k) for r in rows) for k in ("ndcg", "ndcg_low", "ndcg_high", "score_kept", "times_smaller")}  # fmt: skip  # noqa: E501
        beside = None if first.ratio is None else paper.reported(benchmark, backbone, first.method, first.ratio)
        kept = 100 * means["ndcg"] / full if full else 100.0
        size = sum(r.bytes for r in rows)
        found.append(replace(first, **means, kept=kept, bytes=size, by_kind={}, against_full={}, paper=beside))
    return found


HEADS = ("method", "ratio", "NDCG@5", "95 % interval", "kept", "score kept", "times smaller", "vectors", "paper")


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row as text below `HEADS`, with the paper's figure and our difference to it where the paper has the cell."""
    budget = f"cap {row['cap']}" if row["cap"] is not None else f"{row['ratio']:g}"
    beside = "" if row["paper"] is None else f"{row['paper']:.1f} ({row['ndcg'] - row['paper']:+.1f})"
    return (
        row["method"], budget, f"{row['ndcg']:.1f}", f"{row['ndcg_low']:.1f} - {row['ndcg_high']:.1f}",
        f"{row['kept']:.1f} %", f"{row['score_kept']:.1f} %", f"{row['times_smaller']:.1f}",
        f"{row['bytes'] / 1e6:.1f} MB", beside,
    )  # fmt: skip


def save(path: Path, about: dict[str, Any], rows: Sequence[Row], measured: dict[str, Measured]) -> None:
    """Write everything that a report or another comparison may want, in one step."""
    data = {
        "anchorfold": __version__,
        **about,
        "rows": [vars(r) for r in rows],
        "queries": {k: {"ndcg": m.ndcg, "retention": m.retention} for k, m in measured.items()},
    }
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data))
    os.replace(part, path)
