"""SimilarityFold: AnchorFold where there are only vectors. Ours, not the paper's."""

from __future__ import annotations

from anchorfold.compressors.spread_fold import SpreadFold


class SimilarityFold(SpreadFold):
    """Fold onto tokens that are central in the page's own similarities; needs vectors alone, no attention.

    The softmax of a page's cosine similarities stands in for attention and is propagated as attention is. Like tokens
    raise each other's centrality, blank paper above all, so anchors must be unlike each other (as in SpreadFold).

    >>> import numpy as np
    >>> from anchorfold import SimilarityFold, compress_vectors
    >>> page = np.random.default_rng(0).normal(size=(1024, 128))
    >>> len(compress_vectors([page], SimilarityFold(ratio=0.05))[0])
    52

    Args:
        ratio: share of a page's vectors to keep, in (0, 1].
        cap: maximum vectors per page. Give either `ratio` or `cap`.
        steps: propagation depth K; the backbone's calibrated one (6 in the paper) if None.
    """

    name = "similarity-fold"
    title, colour, marker = "SimilarityFold (ours)", "#01665E", "d"

    def __init__(self, ratio: float | None = None, *, cap: int | None = None, steps: int | None = None) -> None:
        super().__init__(ratio, cap=cap, steps=steps, anchors="similarity")
