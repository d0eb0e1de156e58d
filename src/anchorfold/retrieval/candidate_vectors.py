"""One vector per page, by which a database selects the candidates that are scored by MaxSim.

The mean of a page's vectors: its inner product with the sum of the query tokens is the sum over tokens of their mean
similarity, a lower bound of MaxSim. Fixed-dimensional encodings (MUVERA) of ten times the size selected no better
candidates (`benchmarks/candidate_vectors.py`).
"""

from __future__ import annotations

import numpy as np


def candidate_vector(vectors: np.ndarray) -> np.ndarray:
    """Return the `(d,)` candidate vector of a page with `(m, d)` vectors."""
    mean: np.ndarray = vectors.astype(np.float32).mean(0)
    return mean


def candidate_query(tokens: np.ndarray) -> np.ndarray:
    """Return the `(d,)` vector whose inner product with candidate vectors ranks pages, for `(t, d)` query tokens."""
    total: np.ndarray = np.asarray(tokens, np.float32).sum(0)
    return total
