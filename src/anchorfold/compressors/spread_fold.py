"""SpreadFold: AnchorFold with anchors that are central and unlike each other. Ours, not the paper's."""

from __future__ import annotations

import torch

from anchorfold.compressors.anchor_fold import AnchorFold
from anchorfold.fold import spread_tokens
from anchorfold.page import PageState


class SpreadFold(AnchorFold):
    """Focus and fold as in AnchorFold, but a token that repeats an anchor is worth less as another one.

    The m most central tokens of a page may print the same few words; what no anchor resembles is then blurred into
    whichever is nearest. It needs no clustering: m products of the page with one vector.

    >>> len(model.encode_pages(images[:1], SpreadFold(ratio=0.1))[0])
    13
    """

    name = "spread-fold"
    title, colour, marker = "SpreadFold (ours)", "#8C510A", "h"

    def central_tokens(self, page: PageState, alpha: torch.Tensor, m: int) -> torch.Tensor:
        """The anchors `(m,)` in page order."""
        return spread_tokens(alpha, page.embeddings, m)
