"""Ward token pooling: hierarchical clustering, what late-interaction libraries offer today."""

from __future__ import annotations

import torch

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors.base import BudgetCompressor
from anchorfold.compressors.grouping import average_groups
from anchorfold.fold import Folded
from anchorfold.page import PageState


class Ward(BudgetCompressor):
    """Ward linkage on cosine distances, cut into m clusters; means, L2-normalised.

    The same clustering as sentence-transformers' `HierarchicalTokenPooling` without protected tokens (Ward on
    the condensed distances), but always exactly m vectors.

    >>> len(model.encode_pages(images[:1], Ward(ratio=0.1))[0])
    13
    """

    name = "ward"
    title, colour, marker = "Ward", "#56B4E9", "P"

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> Folded:
        """Cluster."""
        from scipy.cluster.hierarchy import cut_tree, linkage
        from scipy.spatial.distance import squareform

        vectors = page.embeddings.float()
        distance = (1 - vectors @ vectors.T).clamp_(0, 2).cpu().numpy()
        tree = linkage(squareform(distance, checks=False), method="ward")
        groups = torch.from_numpy(cut_tree(tree, n_clusters=m)[:, 0])
        return average_groups(page.embeddings, groups, m)
