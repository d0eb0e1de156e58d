"""Semantic Clustering: k-means on a page's retrieval vectors."""

from __future__ import annotations

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors.base import BudgetCompressor
from anchorfold.compressors.grouping import average_groups
from anchorfold.compressors.kmeans import kmeans
from anchorfold.fold import Folded
from anchorfold.page import PageState


class SemanticClustering(BudgetCompressor):
    """Lloyd's k-means (k-means++ start, on the model's device) with m clusters; means, L2-normalised.

    Args:
        ratio: share of a page's vectors to keep, in (0, 1].
        cap: maximum vectors per page. Give either `ratio` or `cap`.
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
        return average_groups(page.embeddings, kmeans(page.embeddings, m, self.seed), m)
