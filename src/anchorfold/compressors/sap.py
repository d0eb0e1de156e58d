"""SAP, Structural Anchor Pruning: keep the tokens that receive most attention from other visual tokens."""

from __future__ import annotations

from collections.abc import Sequence

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import InDegree
from anchorfold.compressors.base import BudgetCompressor, keep
from anchorfold.fold import Folded, top_tokens
from anchorfold.page import PageState


class SAP(BudgetCompressor):
    """Top m by visual in-degree: raw columns of the full softmax, mean over heads and over the window's layers.

    Args:
        ratio: share of a page's vectors to keep, in (0, 1].
        cap: maximum vectors per page. Give either `ratio` or `cap`.
        window: first and last layer, zero-based, inclusive; the backbone's calibrated SAP window if None.

    >>> len(model.encode_pages(images[:1], SAP(ratio=0.1))[0])
    13
    """

    name = "sap"
    title, colour, marker = "SAP", "#009E73", "^"

    def __init__(
        self, ratio: float | None = None, *, cap: int | None = None, window: tuple[int, int] | None = None
    ) -> None:
        super().__init__(ratio, cap=cap)
        self.window = window

    def signals(self, settings: LayerSettings) -> Sequence[InDegree]:
        """In-degrees of the window's layers."""
        first, last = self.window or settings.sap_window
        return [InDegree(layer) for layer in range(first, last + 1)]

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> Folded:
        """Prune."""
        return keep(page, top_tokens(page.mean_signal(self.signals(settings)), m))
