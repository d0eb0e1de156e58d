"""Semantic Clustering: k-means on a page's retrieval vectors."""

from __future__ import annotations

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors.base import BudgetCompressor
from anchorfold.compressors.clustering import average_groups, kmeans
from anchorfold.core.fold import CompressedPage
from anchorfold.page import PageState


class SemanticClustering(BudgetCompressor):
    """L2-normalised means of m k-means clusters (k-means++ initialisation, on the model's device).

    Args:
        ratio: share of a page's vectors to keep, in (0, 1].
        cap: maximum vectors per page. Give either `ratio` or `cap`.
        seed: seed of the k-means++ initialisation.

    Examples:
        >>> len(model.encode_documents(images[:1], SemanticClustering(ratio=0.1))[0])
        13
    """

    name = "semantic-clustering"
    title = "Semantic Clustering"

    def __init__(self, ratio: float | None = None, *, cap: int | None = None, seed: int = 0) -> None:
        super().__init__(ratio, cap=cap)
        self.seed = seed

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> CompressedPage:
        """Cluster and average each cluster."""
        key = ("kmeans", m, self.seed)  # both variants share their clusters
        if key not in page.groups:
            page.groups[key] = kmeans(page.embeddings, m, self.seed)
        return average_groups(page.embeddings, page.groups[key], m, self.normalize)


class RawSemanticClustering(SemanticClustering):
    """Semantic Clustering as the paper defines it: arithmetic means, not normalised."""

    name = "semantic-clustering-raw"
    title = "Semantic Clustering (raw mean)"
    normalize = False
