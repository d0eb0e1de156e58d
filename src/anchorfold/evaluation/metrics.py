"""NDCG@5 and score retention per query, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from anchorfold.core.scoring import retention
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.corpus import Query
from anchorfold.evaluation.methods import FULL
from anchorfold.evaluation.score_pages import PageScores

CUT = 5
RANKED = 10  # pages per ranking
QUERIES = 2048  # per block
RESAMPLES = 2000


@dataclass(frozen=True)
class MethodMetrics:
    """NDCG and score retention of a method by query id, in percent, and the bytes of its vectors as float16.

    The retention of a query is the mean over its relevant pages of `anchorfold.core.scoring.retention`; queries whose
    relevant pages have no positive score in the full index are omitted.
    """

    label: str
    ndcg: dict[str, float]
    retention: dict[str, float]
    vectors: int
    bytes: int


def ndcg_by_query(rankings: dict[str, dict[str, float]], queries: Sequence[Query]) -> dict[str, float]:
    """Compute NDCG@5 in percent with trec_eval's definition."""
    try:
        import ir_measures
    except ImportError as error:
        raise AnchorFoldError("evaluation requires ir-measures: pip install 'anchorfold[eval]'.") from error
    measure = ir_measures.nDCG @ CUT
    truth = {q.id: q.relevant for q in queries}
    return {m.query_id: 100 * m.value for m in ir_measures.iter_calc([measure], truth, rankings)}


def measure(scored: PageScores, queries: Sequence[Query], labels: Sequence[str]) -> dict[str, MethodMetrics]:
    """Compute NDCG@5 and score retention of every method; the full index is the reference."""
    row = {page: i for i, page in enumerate(scored.pages)}
    relevant = [[row[p] for p in q.relevant if p in row] for q in queries]
    full = scored.scores(FULL)
    measured: dict[str, MethodMetrics] = {}
    for label in labels:
        scores = scored.scores(label)
        rankings: dict[str, dict[str, float]] = {}
        retained: dict[str, float] = {}
        for start in range(0, len(queries), QUERIES):
            block = torch.from_numpy(np.array(scores[:, start : start + QUERIES].T))
            top_k = block.topk(min(RANKED, len(scored.pages)))
            for number, (best, values) in enumerate(
                zip(top_k.indices.tolist(), top_k.values.tolist(), strict=True), start
            ):
                query, pages = queries[number], relevant[number]
                rankings[query.id] = {scored.pages[i]: score for i, score in zip(best, values, strict=True)}
                pairs = retention(torch.from_numpy(full[pages, number]), torch.from_numpy(scores[pages, number]))
                if not bool(pairs.isnan().all()):
                    retained[query.id] = float(pairs.nanmean())
        size = int(scored.lengths(label).sum())
        measured[label] = MethodMetrics(label, ndcg_by_query(rankings, queries), retained, size, size * scored.dim * 2)
    return measured


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Return a 95 % bootstrap interval of the mean."""
    array = np.asarray(values, np.float64)
    if len(array) < 2:
        return float(array.mean()), float(array.mean())
    draws = np.random.default_rng(seed).integers(0, len(array), (RESAMPLES, len(array)))
    low, high = np.quantile(array[draws].mean(1), [0.025, 0.975])
    return float(low), float(high)


def paired_difference(one: dict[str, float], other: dict[str, float]) -> dict[str, Any]:
    """Return the mean difference over shared queries with a paired 95 % bootstrap interval."""
    shared = sorted(one.keys() & other.keys())
    differences = [one[q] - other[q] for q in shared]
    low, high = interval(differences)
    return {"difference": float(np.mean(differences)), "low": low, "high": high}
