"""Ward token pooling: hierarchical clustering, as offered by late-interaction libraries."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors.base import BudgetCompressor
from anchorfold.compressors.clustering import average_groups
from anchorfold.core.fold import CompressedPage
from anchorfold.errors import AnchorFoldError
from anchorfold.page import PageState

NEEDED = "ward requires SciPy: pip install 'anchorfold[ward]'."


class Ward(BudgetCompressor):
    """L2-normalised means of m clusters by Ward linkage on cosine distances.

    The same clustering as sentence-transformers' `HierarchicalTokenPooling` without protected tokens (Ward on the
    condensed distances), but always exactly m vectors. Requires SciPy: `pip install 'anchorfold[ward]'`.

    Examples:
        >>> len(model.encode_documents(images[:1], Ward(ratio=0.1))[0])
        13
    """

    name = "ward"
    title = "Ward"

    def unsupported_reason(self, settings: LayerSettings) -> str | None:
        """Return how to install SciPy if it is missing."""
        return NEEDED if find_spec("scipy") is None else None

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> CompressedPage:
        """Cluster and average each cluster."""
        try:
            from scipy.cluster.hierarchy import cut_tree, linkage
            from scipy.spatial.distance import squareform
        except ImportError as error:
            raise AnchorFoldError(NEEDED) from error

        vectors = page.embeddings.float()
        distance = (1 - vectors @ vectors.T).clamp_(0, 2).cpu().numpy()
        tree = linkage(squareform(distance, checks=False), method="ward")
        groups = torch.from_numpy(cut_tree(tree, n_clusters=m)[:, 0])
        return average_groups(page.embeddings, groups, m)
