"""Random pruning: the lower bound for every method."""

from __future__ import annotations

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors.anchor_fold import random_tokens
from anchorfold.compressors.base import BudgetCompressor, keep_tokens
from anchorfold.core.fold import CompressedPage
from anchorfold.page import PageState


class RandomPruning(BudgetCompressor):
    """Keeps m random tokens, drawn without replacement for each page.

    Args:
        ratio: share of a page's vectors to keep, in (0, 1].
        cap: maximum vectors per page. Give either `ratio` or `cap`.
        seed: random seed.

    Examples:
        >>> len(model.encode_documents(images[:1], RandomPruning(ratio=0.1))[0])
        13
    """

    name = "random"
    title = "random"

    def __init__(self, ratio: float | None = None, *, cap: int | None = None, seed: int = 0) -> None:
        super().__init__(ratio, cap=cap)
        self.seed = seed

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> CompressedPage:
        """Prune."""
        return keep_tokens(page, random_tokens(page, m, self.seed))
