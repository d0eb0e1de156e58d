"""SAP (Structural Anchor Pruning): keep the tokens that receive most attention from other visual tokens."""

from __future__ import annotations

from collections.abc import Sequence

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import InDegree
from anchorfold.compressors.base import BudgetCompressor, keep_tokens
from anchorfold.core.fold import CompressedPage, top_tokens
from anchorfold.page import PageState


class SAP(BudgetCompressor):
    """Keeps the m tokens of largest visual in-degree: columns of the full softmax, mean over heads and layers.

    Args:
        ratio: share of a page's vectors to keep, in (0, 1].
        cap: maximum vectors per page. Give either `ratio` or `cap`.
        window: first and last layer, zero-based, inclusive; the backbone's calibrated SAP window if None.

    Examples:
        >>> len(model.encode_documents(images[:1], SAP(ratio=0.1))[0])
        13
    """

    name = "sap"
    title = "SAP"

    def __init__(
        self, ratio: float | None = None, *, cap: int | None = None, window: tuple[int, int] | None = None
    ) -> None:
        super().__init__(ratio, cap=cap)
        self.window = window

    def signals(self, settings: LayerSettings) -> Sequence[InDegree]:
        """Return the in-degrees of the window's layers."""
        first, last = self.window or settings.sap_window
        return [InDegree(layer) for layer in range(first, last + 1)]

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> CompressedPage:
        """Prune."""
        return keep_tokens(page, top_tokens(page.mean_signal(self.signals(settings)), m))
