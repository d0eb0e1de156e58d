"""AGC (attention-guided clustering): a trained baseline that reads the attention of learned tokens."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import LastTextAttention
from anchorfold.compressors.base import BudgetCompressor
from anchorfold.core.fold import CompressedPage, fold_onto, top_tokens
from anchorfold.errors import AnchorFoldError
from anchorfold.page import PageState


def cluster(embeddings: Tensor, saliency: Tensor, m: int) -> CompressedPage:
    """Cluster a page's vectors around the most salient ones; differentiable in vectors and saliency.

    Args:
        embeddings: `(N, d_r)` L2-normalised.
        saliency: `(N,)` non-negative; it selects the centroids and weights each group's mean.
        m: number of centroids, at most N.
    """
    return fold_onto(embeddings, embeddings, top_tokens(saliency.detach(), m), saliency, lambda vectors: vectors)


class AGC(BudgetCompressor):
    """Attention-guided clustering (appendix C), for models trained with universal tokens.

    Saliency is the last layer's attention from the universal tokens. The m most salient vectors are the centroids;
    other vectors join the most similar centroid, and a group becomes the saliency-weighted mean of its vectors.

    Examples:
        >>> AGC(cap=128).unsupported_reason(model.layer_settings)
        'AGC requires a model trained with universal tokens: ...'
    """

    name = "agc"
    title = "AGC (trained)"
    trained = True

    def signals(self, settings: LayerSettings) -> Sequence[LastTextAttention]:
        """Return the last layer's attention from all universal tokens."""
        if reason := self.unsupported_reason(settings):
            raise AnchorFoldError(reason)
        return [LastTextAttention(settings.layers - 1, settings.universal)]

    def unsupported_reason(self, settings: LayerSettings) -> str | None:
        """Reject models without universal tokens."""
        if settings.universal:
            return None
        return (
            "AGC requires a model trained with universal tokens: train one with training/colqwen25 (--recipe agc) or "
            "training/nano (--stage agc), or choose another method."
        )

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> CompressedPage:
        """Cluster the page's retrieval vectors by saliency."""
        return cluster(page.embeddings, page.mean_signal(self.signals(settings)).to(page.embeddings), m)
