"""Score fusion of visual (MaxSim) and text (BM25) search.

With rank fusion or equal weights, a ranking without evidence for a query changes the order of the other one.
Here each ranking is weighted by its score margin for the query: the distance of its best page from the next ones.
`benchmarks/hybrid.py` measures the effect.
"""

from __future__ import annotations

import numpy as np

POOL = 100  # top pages of each ranking that are scored by both
RIVALS = 20  # next pages that the best one is compared with
MAX_MARGIN = 4.0  # upper limit of margins, so that a single page with one word does not suppress the other ranking


def fused_scores(visual: np.ndarray, text: np.ndarray, no_text: np.ndarray) -> np.ndarray:
    """Return one score `(n,)` per page from its MaxSim and BM25 scores, on the scale of the MaxSim scores.

    A page without text receives a text score in proportion to its visual score: the best visual score corresponds to
    the best text score of the other pages. Pages without text affect neither the scale nor the weight of the text
    scores. Without any text match, the result is the visual scores.

    Args:
        visual: `(n,)` MaxSim scores.
        text: `(n,)` BM25 scores, 0 where no word matches.
        no_text: `(n,)` mask of pages without text.
    """
    if not text.any():
        return visual
    images = standardized(visual)
    words = np.empty(len(text))
    words[~no_text] = standardized(text[~no_text])
    words[no_text] = images[no_text] * (words[~no_text].max() / (images.max() or 1.0))
    image_weight, text_weight = score_margin(visual) ** 2, score_margin(text[~no_text]) ** 2
    share = text_weight / (image_weight + text_weight) if image_weight + text_weight > 0 else 0.5
    both: np.ndarray = visual.mean() + (visual.std() or 1.0) * ((1 - share) * images + share * words)
    return both


def standardized(scores: np.ndarray) -> np.ndarray:
    """Return `(n,)` scores scaled to mean 0 and standard deviation 1; all 0 if they are equal."""
    deviation = float(scores.std())
    return (scores - scores.mean()) / deviation if deviation > 0 else np.zeros(len(scores))


def score_margin(scores: np.ndarray) -> float:
    """Return the distance of the best score from the mean of the next ones, in standard deviations of the latter."""
    best, rivals = np.split(np.sort(scores)[::-1][: RIVALS + 1], [1])
    if not len(rivals):
        return 0.0
    distance, deviation = float(best[0] - rivals.mean()), float(rivals.std())
    if deviation == 0:
        return MAX_MARGIN if distance > 0 else 0.0
    return min(distance / deviation, MAX_MARGIN)
