"""SimilarityFold: AnchorFold without attention, for existing vectors. An extension of the paper."""

from __future__ import annotations

from anchorfold.compressors.spread_fold import SpreadFold


class SimilarityFold(SpreadFold):
    """Folds a page onto tokens that are central in its similarity graph; requires vectors only.

    The softmax of the page's cosine similarities replaces attention in the propagation. Similar tokens raise each
    other's centrality, blank areas most of all, so anchors must be dissimilar (as in SpreadFold).

    Args:
        ratio: share of a page's vectors to keep, in (0, 1].
        cap: maximum vectors per page. Give either `ratio` or `cap`.
        steps: propagation depth K; the backbone's calibrated value (6 in the paper) if None.

    Examples:
        >>> import numpy as np
        >>> from anchorfold import SimilarityFold, compress_vectors
        >>> page = np.random.default_rng(0).normal(size=(1024, 128))
        >>> len(compress_vectors([page], SimilarityFold(ratio=0.05))[0])
        52
    """

    name = "similarity-fold"
    title = "SimilarityFold (ours)"

    def __init__(self, ratio: float | None = None, *, cap: int | None = None, steps: int | None = None) -> None:
        super().__init__(ratio, cap=cap, steps=steps, anchors="similarity")
