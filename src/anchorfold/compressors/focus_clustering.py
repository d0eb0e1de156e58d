"""FocusClustering: k-means weighted by attention centrality. An extension of the paper."""

from __future__ import annotations

from collections.abc import Sequence

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import PropagatedAttention
from anchorfold.compressors.anchor_fold import AnchorFold
from anchorfold.compressors.clustering import kmeans, merge_groups
from anchorfold.compressors.semantic_clustering import SemanticClustering
from anchorfold.core.fold import CompressedPage
from anchorfold.core.numerics import upcast
from anchorfold.page import PageState


class FocusClustering(SemanticClustering):
    """k-means on the retrieval vectors, with tokens weighted by the square root of their centrality.

    Clusters concentrate where attention does instead of on blank areas. Each cluster becomes the weighted mean of its
    tokens' hidden states before the projection, as in folding. The square root, because k-means already assigns more
    clusters to frequent content: full centrality would count it twice.

    Args:
        ratio: share of a page's vectors to keep, in (0, 1].
        cap: maximum vectors per page. Give either `ratio` or `cap`.
        seed: seed of the k-means++ initialisation.
        steps: propagation steps of AnchorFold's centrality.
        window: first and last layer of AnchorFold's centrality.
        graph: visual attention graph of AnchorFold's centrality.

    Examples:
        >>> len(model.encode_documents(images[:1], FocusClustering(ratio=0.1))[0])
        13
    """

    name = "focus-clustering"
    title = "FocusClustering (ours)"

    def __init__(
        self, ratio: float | None = None, *, cap: int | None = None, seed: int = 0, steps: int | None = None,
        window: tuple[int, int] | None = None, graph: str = "attention",
    ) -> None:  # fmt: skip
        super().__init__(ratio, cap=cap, seed=seed)
        self.steps, self.window, self.graph = steps, window, graph
        self._anchor_fold = AnchorFold(ratio, cap=cap, steps=steps, window=window, graph=graph)

    def signals(self, settings: LayerSettings) -> Sequence[PropagatedAttention]:
        """Return the signals of AnchorFold."""
        return self._anchor_fold.signals(settings)

    def unsupported_reason(self, settings: LayerSettings) -> str | None:
        """Return the reason of AnchorFold."""
        return self._anchor_fold.unsupported_reason(settings)

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> CompressedPage:
        """Cluster by centrality and merge each cluster."""
        weights = page.mean_signal(self.signals(settings)).to(page.embeddings).sqrt()
        groups = kmeans(page.embeddings, m, self.seed, weights)
        return merge_groups(upcast(page.hidden), page.embeddings, groups, m, weights, page.project)
