"""AGC: a trained compressor. Learned tokens, appended to the page, say which vectors matter."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import FromLastText
from anchorfold.compressors.base import BudgetCompressor
from anchorfold.errors import AnchorFoldError
from anchorfold.fold import Folded, fold_onto, top_tokens
from anchorfold.page import PageState


def cluster(embeddings: Tensor, saliency: Tensor, m: int) -> Folded:
    """A page's vectors gathered round its most salient ones; differentiable in vectors and saliency.

    Args:
        embeddings: `(N, d_r)` L2-normalised.
        saliency: `(N,)` at least 0; it chooses the centroids and weighs each group's mean.
        m: centroids, at most N.
    """
    return fold_onto(embeddings, embeddings, top_tokens(saliency.detach(), m), saliency, lambda vectors: vectors)


class AGC(BudgetCompressor):
    """Attention-guided clustering (appendix C): only for a model that was trained with universal tokens.

    Saliency is the last layer's attention from those tokens. The m most salient vectors represent the page, every
    other one joins its most similar representative, and a group becomes the saliency-weighted mean of its vectors.

    >>> AGC(cap=128).obstacle(model.settings)
    'AGC needs a model that was trained with universal tokens, and this one has none: ...'
    """

    name = "agc"
    title, colour, marker = "AGC (trained)", "#B2182B", "p"
    trained = True

    def signals(self, settings: LayerSettings) -> Sequence[FromLastText]:
        """The last layer's attention from all universal tokens."""
        if obstacle := self.obstacle(settings):
            raise AnchorFoldError(obstacle)
        return [FromLastText(settings.layers - 1, settings.universal)]

    def obstacle(self, settings: LayerSettings) -> str | None:
        """A model without universal tokens."""
        if settings.universal:
            return None
        return (
            "AGC needs a model that was trained with universal tokens, and this one has none: "
            "training/colqwen25 (--recipe agc) and training/nano (--stage agc) train one, or choose another method."
        )

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> Folded:
        """Select, assign, average, all among the page's retrieval vectors."""
        saliency = page.mean_signal(self.signals(settings)).to(page.embeddings)
        return cluster(page.embeddings, saliency, m)
