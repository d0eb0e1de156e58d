"""1D-Pooling: average runs of neighbouring tokens."""

from __future__ import annotations

import torch

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors.base import BudgetCompressor
from anchorfold.compressors.grouping import average_groups
from anchorfold.fold import Folded
from anchorfold.page import PageState


class Pooling1D(BudgetCompressor):
    """m contiguous groups of the ordered vectors, whose sizes differ by at most one; means, L2-normalised.

    >>> len(model.encode_pages(images[:1], Pooling1D(ratio=0.1))[0])
    13
    """

    name = "1d-pooling"
    title, colour, marker = "1D-Pooling", "#E69F00", "D"

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> Folded:
        """Pool."""
        groups = torch.arange(len(page), device=page.hidden.device) * m // len(page)
        return average_groups(page.embeddings, groups, m)
