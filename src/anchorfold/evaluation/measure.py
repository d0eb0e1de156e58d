"""From scores to NDCG@5 and score retention, per query, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.corpus import Query
from anchorfold.evaluation.methods import FULL
from anchorfold.evaluation.score_pages import PageScores
from anchorfold.scoring import retention

CUT = 5
RANKED = 10  # pages of a ranking; NDCG@5 looks at five
QUERIES = 2048  # at a time
RESAMPLES = 2000


@dataclass(frozen=True)
class Measured:
    """One method: `ndcg` and `retention` by query id (both in percent), and bytes of its vectors as float16.

    The retention of a query is the mean over its relevant pages of `anchorfold.scoring.retention`; queries whose
    relevant pages all score nothing in the full index have none.
    """

    label: str
    ndcg: dict[str, float]
    retention: dict[str, float]
    vectors: int
    bytes: int


def ndcg_by_query(rankings: dict[str, dict[str, float]], queries: Sequence[Query]) -> dict[str, float]:
    """NDCG@5 in percent as trec_eval computes it."""
    try:
        import ir_measures
    except ImportError as error:
        raise AnchorFoldError("evaluation needs ir-measures: pip install 'anchorfold[eval]'.") from error
    measure = ir_measures.nDCG @ CUT
    truth = {q.id: q.relevant for q in queries}
    return {m.query_id: 100 * m.value for m in ir_measures.iter_calc([measure], truth, rankings)}


def measure(scored: PageScores, queries: Sequence[Query], labels: Sequence[str]) -> dict[str, Measured]:
    """NDCG@5 and score retention of every method; the full index is the reference."""
    row = {page: i for i, page in enumerate(scored.pages)}
    relevant = [[row[p] for p in q.relevant if p in row] for q in queries]
    full = scored.scores(FULL)
    measured: dict[str, Measured] = {}
    for label in labels:
        scores = scored.scores(label)
        rankings: dict[str, dict[str, float]] = {}
        retained: dict[str, float] = {}
        for start in range(0, len(queries), QUERIES):
            block = torch.from_numpy(np.array(scores[:, start : start + QUERIES].T))
            top = block.topk(min(RANKED, len(scored.pages)))
            for number, (best, values) in enumerate(zip(top.indices.tolist(), top.values.tolist(), strict=True), start):
                query, pages = queries[number], relevant[number]
                rankings[query.id] = {scored.pages[i]: score for i, score in zip(best, values, strict=True)}
                pairs = retention(torch.from_numpy(full[pages, number]), torch.from_numpy(scores[pages, number]))
                if not bool(pairs.isnan().all()):
                    retained[query.id] = float(pairs.nanmean())
        size = int(scored.lengths(label).sum())
        measured[label] = Measured(label, ndcg_by_query(rankings, queries), retained, size, size * scored.dim * 2)
    return measured


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """A 95 % bootstrap interval of the mean."""
    array = np.asarray(values, np.float64)
    if len(array) < 2:
        return float(array.mean()), float(array.mean())
    draws = np.random.default_rng(seed).integers(0, len(array), (RESAMPLES, len(array)))
    low, high = np.quantile(array[draws].mean(1), [0.025, 0.975])
    return float(low), float(high)


def paired_difference(one: dict[str, float], other: dict[str, float]) -> dict[str, Any]:
    """The mean difference over the queries that both have, with a paired 95 % bootstrap interval."""
    shared = sorted(one.keys() & other.keys())
    differences = [one[q] - other[q] for q in shared]
    low, high = interval(differences)
    return {"difference": float(np.mean(differences)), "low": low, "high": high}
