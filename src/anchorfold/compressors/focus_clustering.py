"""FocusClustering: k-means that listens to centrality. Ours, not the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from anchorfold._numerics import widen
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import Propagated
from anchorfold.compressors.anchor_fold import AnchorFold
from anchorfold.compressors.grouping import merge_groups
from anchorfold.compressors.kmeans import kmeans
from anchorfold.compressors.semantic_clustering import SemanticClustering
from anchorfold.fold import Folded
from anchorfold.page import PageState


class FocusClustering(SemanticClustering):
    """k-means on the retrieval vectors in which each token weighs the root of its centrality.

    Clusters then go where attention gathers instead of to blank paper, and each becomes the weighted mean of its
    tokens' hidden states before the projection, as in Fold. The root, because k-means already gives a group that
    many tokens share what it needs: the full centrality would count them twice.

    Args:
        ratio: share of a page's vectors to keep, in (0, 1].
        cap: maximum vectors per page. Give either `ratio` or `cap`.
        seed: of the k-means++ start.
        steps: propagation steps of AnchorFold's centrality.
        window: first and last layer of AnchorFold's centrality.

    >>> len(model.encode_pages(images[:1], FocusClustering(ratio=0.1))[0])
    13
    """

    name = "focus-clustering"
    title, colour, marker = "FocusClustering (ours)", "#35247A", "X"

    def __init__(
        self,
        ratio: float | None = None,
        *,
        cap: int | None = None,
        seed: int = 0,
        steps: int | None = None,
        window: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(ratio, cap=cap, seed=seed)
        self.steps, self.window = steps, window
        self._focus = AnchorFold(ratio, cap=cap, steps=steps, window=window)

    def signals(self, settings: LayerSettings) -> Sequence[Propagated]:
        """What AnchorFold listens to."""
        return self._focus.signals(settings)

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> Folded:
        """Cluster by centrality, then fold each cluster."""
        weights = page.mean_signal(self.signals(settings)).to(page.embeddings).sqrt()
        groups = kmeans(page.embeddings, m, self.seed, weights)
        return merge_groups(widen(page.hidden), page.embeddings, groups, m, weights, page.project)
