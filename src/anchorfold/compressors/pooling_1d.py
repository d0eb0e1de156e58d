"""1D-Pooling: average runs of neighbouring tokens."""

from __future__ import annotations

import torch

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors.base import BudgetCompressor
from anchorfold.compressors.clustering import average_groups
from anchorfold.core.fold import CompressedPage
from anchorfold.page import PageState


class Pooling1D(BudgetCompressor):
    """L2-normalised means of m contiguous groups of tokens, whose sizes differ by at most one.

    Examples:
        >>> len(model.encode_documents(images[:1], Pooling1D(ratio=0.1))[0])
        13
    """

    name = "1d-pooling"
    title = "1D-Pooling"

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> CompressedPage:
        """Average each group."""
        groups = torch.arange(len(page), device=page.hidden.device) * m // len(page)
        return average_groups(page.embeddings, groups, m, self.normalize)


class RawPooling1D(Pooling1D):
    """1D-Pooling as the paper defines it: arithmetic means, not normalised."""

    name = "1d-pooling-raw"
    title = "1D-Pooling (raw mean)"
    normalize = False
