"""FocusClustering: k-means that listens to centrality. Ours, not the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from anchorfold.compressors.anchor_fold import AnchorFold
from anchorfold.compressors.base import register
from anchorfold.compressors.grouping import merge_groups
from anchorfold.compressors.semantic_clustering import SemanticClustering, cluster
from anchorfold.fold import Folded
from anchorfold.numerics import widen
from anchorfold.page import PageState
from anchorfold.settings import Settings
from anchorfold.signals import Propagated


@register
class FocusClustering(SemanticClustering):
    """k-means on the retrieval vectors in which each token weighs the root of its centrality.

    Clusters then go where attention gathers instead of to blank paper, and each becomes the weighted mean of its
    tokens' hidden states before the projection, as in Fold. The root, because k-means already gives a group that
    many tokens share what it needs: the full centrality would count them twice.
    """

    name = "focus-clustering"

    def signals(self, settings: Settings) -> Sequence[Propagated]:
        """What AnchorFold listens to."""
        return AnchorFold(1.0).signals(settings)

    def reduce(self, page: PageState, m: int, settings: Settings) -> Folded:
        """Cluster by centrality, then fold each cluster."""
        weights = page.mean_signal(self.signals(settings)).to(page.embeddings).sqrt()
        groups = cluster(page.embeddings, m, self.seed, weights)
        return merge_groups(widen(page.hidden), page.embeddings, groups, m, weights, page.project)
