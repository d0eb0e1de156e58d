"""Semantic Clustering: k-means on a page's retrieval vectors."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors.base import BudgetCompressor
from anchorfold.compressors.grouping import average_groups
from anchorfold.fold import Folded
from anchorfold.page import PageState


class SemanticClustering(BudgetCompressor):
    """Lloyd's k-means (scikit-learn, k-means++ start) with m clusters; means, L2-normalised.

    Args:
        ratio, cap: the budget, exactly one of them.
        seed: of the k-means++ start.

    >>> len(model.encode_pages(images[:1], SemanticClustering(ratio=0.1))[0])
    13
    """

    name = "semantic-clustering"
    title, colour, marker = "Semantic Clustering", "#0072B2", "s"

    def __init__(self, ratio: float | None = None, *, cap: int | None = None, seed: int = 0) -> None:
        super().__init__(ratio, cap=cap)
        self.seed = seed

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> Folded:
        """Cluster; clusters that stay empty (equal vectors) are filled with the worst-placed tokens."""
        return average_groups(page.embeddings, cluster(page.embeddings, m, self.seed), m)


def cluster(embeddings: Tensor, m: int, seed: int, weights: Tensor | None = None) -> Tensor:
    """`(N,)` cluster numbers 0 to m - 1, all in use, of `embeddings (N, d_r)`; tokens may have `weights (N,)`."""
    from sklearn.cluster import KMeans

    vectors = embeddings.double().cpu().numpy()
    mass = None if weights is None else weights.double().cpu().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fewer distinct vectors than clusters: handled below
        labels = KMeans(m, n_init=1, max_iter=100, random_state=seed).fit_predict(vectors, sample_weight=mass)
    return torch.from_numpy(fill_empty(vectors, labels, m))


def fill_empty(vectors: np.ndarray, labels: np.ndarray, m: int) -> np.ndarray:
    """Labels `(N,)` with all of 0..m-1 in use: each empty cluster takes the token farthest from its mean."""
    labels = labels.astype(np.int64).copy()
    counts = np.bincount(labels, minlength=m)
    if counts.all():
        return labels
    means = np.zeros((m, vectors.shape[1]))
    np.add.at(means, labels, vectors)
    distance = np.square(vectors - (means / np.maximum(counts, 1)[:, None])[labels]).sum(1)
    farthest = iter(np.argsort(-distance, kind="stable"))
    for empty in np.flatnonzero(counts == 0):
        token = next(t for t in farthest if counts[labels[t]] > 1)
        counts[labels[token]] -= 1
        labels[token] = empty
        counts[empty] = 1
    return labels
