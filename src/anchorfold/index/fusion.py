"""One order of pages from two: by what they look like, and by what they say.

Fusing by ranks, or with equal weights, lets the side that knows nothing of a query drag the other down. Here each side
counts by how decisive it is for the query: how far its best page stands out from the next ones. `benchmarks/hybrid.py`
measures it.
"""

from __future__ import annotations

import numpy as np

POOL = 100  # best pages of each side that both sides score
RIVALS = 20  # next pages that the best one is compared with
MOST_DECISIVE = 4.0  # more counts as this: a single page with one word must not silence the other side


def fused(visual: np.ndarray, text: np.ndarray, no_text: np.ndarray) -> np.ndarray:
    """`(n,)` one score a page from its MaxSim `visual (n,)` and its BM25 `text (n,)`; higher is better.

    `no_text (n,)` is true for pages without any text: these count by their pixels alone. If no page says any of the
    words, all do.
    """
    looks = standard(visual)
    if not text.any():
        return looks
    words = np.where(no_text, looks, standard(text))
    by_looks, by_words = decisiveness(visual) ** 2, decisiveness(text) ** 2
    share = by_words / (by_looks + by_words) if by_looks + by_words > 0 else 0.5
    both: np.ndarray = (1 - share) * looks + share * words
    return both


def standard(scores: np.ndarray) -> np.ndarray:
    """`(n,)` scores around 0 with a spread of 1; all 0 if they are equal."""
    spread = float(scores.std())
    return (scores - scores.mean()) / spread if spread > 0 else np.zeros(len(scores))


def decisiveness(scores: np.ndarray) -> float:
    """How far the best of some scores stands out: its distance from the mean of the next ones, by their spread."""
    best, rivals = np.split(np.sort(scores)[::-1][: RIVALS + 1], [1])
    if not len(rivals):
        return 0.0
    distance, spread = float(best[0] - rivals.mean()), float(rivals.std())
    if spread == 0:
        return MOST_DECISIVE if distance > 0 else 0.0
    return min(distance / spread, MOST_DECISIVE)
