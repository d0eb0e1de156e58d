"""Random pruning: the floor that every method must beat."""

from __future__ import annotations

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors.anchor_fold import random_tokens
from anchorfold.compressors.base import BudgetCompressor, keep
from anchorfold.fold import Folded
from anchorfold.page import PageState


class RandomPruning(BudgetCompressor):
    """Keep m tokens drawn without replacement, anew for each page.

    Args:
        ratio: share of a page's vectors to keep, in (0, 1].
        cap: maximum vectors per page. Give either `ratio` or `cap`.
        seed: of the draw.

    >>> len(model.encode_pages(images[:1], RandomPruning(ratio=0.1))[0])
    13
    """

    name = "random"
    title, colour, marker = "random", "#666666", "+"

    def __init__(self, ratio: float | None = None, *, cap: int | None = None, seed: int = 0) -> None:
        super().__init__(ratio, cap=cap)
        self.seed = seed

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> Folded:
        """Prune."""
        return keep(page, random_tokens(page, m, self.seed))
