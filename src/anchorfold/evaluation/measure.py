"""From collected vectors to NDCG@5 and score retention, per query, with intervals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.collect import Collected
from anchorfold.evaluation.corpus import Query
from anchorfold.evaluation.methods import FULL
from anchorfold.scoring import chunks, maxsim

CUT = 5
QUERIES, VECTORS = 2048, 2048  # queries, and distinct vectors of theirs, at a time
RESAMPLES = 2000


@dataclass(frozen=True)
class Measured:
    """One method: `ndcg` and `retention` by query id (both in percent), and bytes of its vectors as float16."""

    label: str
    ndcg: dict[str, float]
    retention: dict[str, float]
    vectors: int
    bytes: int


def page_scores(queries: Sequence[Tensor], vectors: np.ndarray, lengths: np.ndarray) -> Tensor:
    """`(queries, pages)` MaxSim, reading the vectors chunk by chunk, each once.

    Queries of one data set share words, and some models give a word one vector: each distinct one is scored once.
    """
    starts = np.concatenate(([0], lengths.cumsum()))
    owner = torch.repeat_interleave(torch.tensor([len(q) for q in queries]))
    distinct, place = torch.cat(list(queries)).unique(dim=0, return_inverse=True)
    best = torch.zeros(len(distinct), len(lengths))
    for first, last in chunks(lengths.tolist()):
        block = torch.from_numpy(np.array(vectors[starts[first] : starts[last]], np.float32))
        pages = block.split(lengths[first:last].tolist())
        for start in range(0, len(distinct), VECTORS):
            part = distinct[start : start + VECTORS]
            best[start : start + VECTORS, first:last] = maxsim(part.split(1), pages)
    return torch.zeros(len(queries), len(lengths)).index_add_(0, owner, best[place])


def ndcg_by_query(rankings: dict[str, dict[str, float]], queries: Sequence[Query]) -> dict[str, float]:
    """NDCG@5 in percent as trec_eval computes it."""
    try:
        import ir_measures
    except ImportError as error:
        raise AnchorFoldError("evaluation needs ir-measures: pip install 'anchorfold[eval]'.") from error
    measure = ir_measures.nDCG @ CUT
    truth = {q.id: q.relevant for q in queries}
    return {m.query_id: 100 * m.value for m in ir_measures.iter_calc([measure], truth, rankings)}


def measure(
    collected: Collected,
    queries: Sequence[Query],
    encoded: Sequence[Tensor],
    labels: Sequence[str],
    progress: Callable[[str], None] | None = None,
) -> dict[str, Measured]:
    """NDCG@5 and score retention of every method; the full index is the reference."""
    place = {page: i for i, page in enumerate(collected.pages)}
    answers = [[place[p] for p in q.relevant if p in place] for q in queries]
    found: dict[str, Measured] = {}
    reference: dict[str, float] = {}
    for label in [FULL, *(name for name in labels if name != FULL)]:
        vectors, lengths = collected.vectors(label)
        rankings: dict[str, dict[str, float]] = {}
        retention: dict[str, float] = {}
        for start in range(0, len(queries), QUERIES):
            scores = page_scores(encoded[start : start + QUERIES], vectors, lengths)
            for row, query, pages in zip(scores, queries[start:], answers[start:], strict=False):
                top = row.topk(min(10, len(row)))
                rankings[query.id] = {
                    collected.pages[i]: s for i, s in zip(top.indices.tolist(), top.values.tolist(), strict=True)
                }
                if not pages:
                    continue
                value = float(row[pages].max())
                if label == FULL:
                    reference[query.id] = value
                if reference.get(query.id):
                    retention[query.id] = 100 * value / reference[query.id]
        size = int(lengths.sum())
        found[label] = Measured(label, ndcg_by_query(rankings, queries), retention, size, size * collected.dim * 2)
        if progress is not None:
            progress(label)
    return found


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """A 95 % bootstrap interval of the mean."""
    array = np.asarray(values, np.float64)
    if len(array) < 2:
        return float(array.mean()), float(array.mean())
    draws = np.random.default_rng(seed).integers(0, len(array), (RESAMPLES, len(array)))
    low, high = np.quantile(array[draws].mean(1), [0.025, 0.975])
    return float(low), float(high)


def compare(one: dict[str, float], other: dict[str, float]) -> dict[str, Any]:
    """The mean difference over the queries that both have, with a paired 95 % bootstrap interval."""
    shared = sorted(one.keys() & other.keys())
    differences = [one[q] - other[q] for q in shared]
    low, high = interval(differences)
    return {"difference": float(np.mean(differences)), "low": low, "high": high}
