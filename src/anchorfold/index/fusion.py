"""One order of pages from two: by what they look like, and by what they say."""

from __future__ import annotations

import numpy as np

POOL = 100  # best pages of each side that both sides score


def fused(visual: np.ndarray, text: np.ndarray, silent: np.ndarray) -> np.ndarray:
    """`(n,)` one score a page from its MaxSim `visual (n,)` and its BM25 `text (n,)`; higher is better.

    `silent (n,)` is true for pages without any text: these count by their pixels alone.
    """
    looks = _standard(visual)
    if not text.any():
        return looks
    words = np.where(silent, looks, _standard(text))
    return looks + words


def _standard(scores: np.ndarray) -> np.ndarray:
    spread = float(scores.std())
    return (scores - scores.mean()) / spread if spread > 0 else np.zeros(len(scores))
