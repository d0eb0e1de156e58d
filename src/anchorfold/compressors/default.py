"""The default method: a budget whose method depends on the model."""

from __future__ import annotations

from anchorfold.attention.layer_settings import PAPER, LayerSettings
from anchorfold.compressors.anchor_fold import AnchorFold
from anchorfold.compressors.base import BudgetCompressor, Compressor
from anchorfold.compressors.focus_clustering import FocusClustering
from anchorfold.core.fold import CompressedPage
from anchorfold.page import PageState

CAUSAL_GRAPH = "mirrored-symmetric"
# Model families with measured results of AnchorFold: nano by this project, the others by the paper.
ANCHORFOLD_FAMILIES = frozenset({"nano", *PAPER})


class DefaultCompressor(BudgetCompressor):
    """AnchorFold for families on which it was measured, FocusClustering for other models.

    On attention that was not trained for it, AnchorFold can be worse than k-means, and in a causal graph the propagated
    mass accumulates in the first tokens of a page (docs/research/focus.md has the figures). An index stores the method
    that was chosen when it was created.

    Args:
        ratio: share of a page's vectors to keep, in (0, 1].
        cap: maximum vectors per page. Give either `ratio` or `cap`.

    Examples:
        >>> DefaultCompressor(ratio=0.1).for_model("colpali", is_causal=False)
        AnchorFold(ratio=0.1)
        >>> DefaultCompressor(ratio=0.1).for_model("colqwen3", is_causal=True)
        FocusClustering(ratio=0.1, graph='mirrored-symmetric')
    """

    name = "auto"

    def for_model(self, family: str, is_causal: bool) -> Compressor:
        """Return the compressor for a model."""
        if is_causal:
            return FocusClustering(self.ratio, cap=self.cap, graph=CAUSAL_GRAPH)
        if family in ANCHORFOLD_FAMILIES:
            return AnchorFold(self.ratio, cap=self.cap)
        return FocusClustering(self.ratio, cap=self.cap)

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> CompressedPage:
        """Raise, because the model is unknown."""
        raise TypeError("the default method depends on the model: call for_model().")
