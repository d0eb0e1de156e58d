"""Measure the agreement of candidate search with an exact scan on a given index and queries."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anchorfold.retrieval.scan import Scanner

COUNTS = (50, 100, 200, 500, 1_000, 2_000, 4_000, 6_000, 10_000)


@dataclass(frozen=True)
class Agreement:
    """Mean top-k `overlap`, top-1 agreement (`first`) and seconds per query with `candidates`, and of an exact scan."""

    candidates: int
    overlap: float
    first: float
    seconds: float
    seconds_of_all: float


def agreement(
    scanner: Scanner, queries: Sequence[Any], top_k: int = 10, counts: Sequence[int] = COUNTS
) -> list[Agreement]:
    """Return the agreement for each number of candidates; queries without tokens are ignored.

    Args:
        scanner: scanner of the index.
        queries: query vectors, `(tokens, d)` each.
        top_k: number of results per query.
        counts: numbers of candidates to measure.
    """
    queries = [query for query in queries if len(query)]
    began = time.perf_counter()
    answers = [_pages(scanner.top_k([query], top_k, exact=True)[0]) for query in queries]
    seconds_of_all = (time.perf_counter() - began) / max(1, len(queries))
    measured = []
    for count in counts:
        began = time.perf_counter()
        chosen = [_pages(scanner.top_k([query], top_k, candidates=count)[0]) for query in queries]
        seconds = (time.perf_counter() - began) / max(1, len(queries))
        pairs = [(a, b) for a, b in zip(answers, chosen, strict=True) if a]
        overlap = sum(len(set(a) & set(b)) / len(a) for a, b in pairs) / max(1, len(pairs))
        first = sum(a[0] == b[0] for a, b in pairs) / max(1, len(pairs))
        measured.append(Agreement(count, overlap, first, seconds, seconds_of_all))
    return measured


def _pages(ranking: Sequence[tuple[int, float]]) -> list[int]:
    return [number for number, _ in ranking]
