"""SpreadFold: AnchorFold with anchors that are central and dissimilar. An extension of the paper."""

from __future__ import annotations

import torch

from anchorfold.compressors.anchor_fold import AnchorFold
from anchorfold.core.fold import spread_tokens
from anchorfold.page import PageState


class SpreadFold(AnchorFold):
    """AnchorFold with a penalty for tokens that are similar to anchors selected before.

    The m most central tokens of a page may repeat the same few words; content that no anchor resembles is then averaged
    into the nearest one. The selection costs m products of the page with one vector, and no clustering.

    Examples:
        >>> len(model.encode_documents(images[:1], SpreadFold(ratio=0.1))[0])
        13
    """

    name = "spread-fold"
    title = "SpreadFold (ours)"

    def select_anchors(self, page: PageState, alpha: torch.Tensor, m: int) -> torch.Tensor:
        """Return the anchors `(m,)` in page order."""
        return spread_tokens(alpha, page.embeddings, m)
