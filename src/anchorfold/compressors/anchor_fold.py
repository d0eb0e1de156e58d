"""AnchorFold: focus by Recursive Attention Propagation, then fold. With the paper's ablation switches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch

from anchorfold._numerics import require_finite, widen
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import Propagated
from anchorfold.compressors.base import BudgetCompressor, keep
from anchorfold.focus import centrality, require_steps, similarity_graph
from anchorfold.fold import Folded, fold_onto, top_tokens
from anchorfold.page import PageState

DRAW_DIMENSIONS = 8


class AnchorFold(BudgetCompressor):
    """The paper's method: the most central tokens become anchors, and every other token folds into its nearest one.

    Args:
        ratio: share of a page's vectors to keep, in (0, 1].
        cap: maximum vectors per page. Give either `ratio` or `cap`.
        steps: propagation depth K; the backbone's calibrated one (6 in the paper) if None.
        window: first and last layer, zero-based, inclusive; the backbone's calibrated one if None.
        anchors: "centrality", or "random" with `seed` (the ablation without centrality selection), or "similarity":
            central in the page's own similarities instead of in attention, for where there are only vectors. Ours,
            not the paper's; it decides the weights too.
        folding: False keeps the anchors' own vectors only (the ablation without folding).
        weights: "centrality", or "uniform" (the ablation without centrality weighting).
        seed: for random anchors, which differ from page to page.

    >>> page, *_ = model.encode_pages(images, AnchorFold(ratio=0.1))
    >>> f"{page.full} vectors became {len(page)}"
    '128 vectors became 13'
    """

    name = "anchorfold"
    title, colour, marker = "AnchorFold", "#D55E00", "o"
    # The paper's table of ablations: each changes one choice.
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "one-step": {"steps": 1},
        "random-anchors": {"anchors": "random"},
        "no-folding": {"folding": False},
        "uniform-weights": {"weights": "uniform"},
    }

    def __init__(
        self,
        ratio: float | None = None,
        *,
        cap: int | None = None,
        steps: int | None = None,
        window: tuple[int, int] | None = None,
        anchors: Literal["centrality", "random", "similarity"] = "centrality",
        folding: bool = True,
        weights: Literal["centrality", "uniform"] = "centrality",
        seed: int = 0,
    ) -> None:
        super().__init__(ratio, cap=cap)
        if steps is not None:
            require_steps(steps)
        if anchors not in ("centrality", "random", "similarity"):
            raise ValueError(f'anchors must be "centrality", "random" or "similarity", got {anchors!r}.')
        if weights not in ("centrality", "uniform"):
            raise ValueError(f'weights must be "centrality" or "uniform", got {weights!r}.')
        self.steps, self.window, self.seed = steps, window, seed
        self.anchors, self.folding, self.weights = anchors, folding, weights

    def signals(self, settings: LayerSettings) -> Sequence[Propagated]:
        """The window's layer scores at depth K; none if the page's similarities stand in for them."""
        if self.anchors == "similarity":
            return ()
        first, last = self.window or settings.window
        return [Propagated(layer, self.steps or settings.steps) for layer in range(first, last + 1)]

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> Folded:
        """Focus, then fold."""
        require_finite("hidden", page.hidden)
        if self.anchors == "similarity":
            alpha = centrality([similarity_graph(page.embeddings)], self.steps or settings.steps)
        else:
            alpha = page.mean_signal(self.signals(settings)).to(page.hidden.device)
        require_finite("alpha", alpha)
        chance = self.anchors == "random"
        anchors = random_tokens(page, m, self.seed) if chance else self.central_tokens(page, alpha, m)
        if not self.folding:
            return keep(page, anchors)
        if self.weights == "uniform":
            alpha = torch.ones_like(alpha)
        return fold_onto(widen(page.hidden), page.embeddings, anchors, alpha.to(page.embeddings.dtype), page.project)

    def central_tokens(self, page: PageState, alpha: torch.Tensor, m: int) -> torch.Tensor:
        """The anchors `(m,)` in page order."""
        return top_tokens(alpha, m)


def random_tokens(page: PageState, m: int, seed: int) -> torch.Tensor:
    """`(m,)` positions drawn without replacement, in page order; each page has a draw of its own.

    The draw depends on the seed and on where the page's strongest tokens lie in a few dimensions: the last digits,
    which batches and devices change, do not change that; another page does.
    """
    strongest = page.embeddings[:, :DRAW_DIMENSIONS].argmax(0).tolist()
    digest = hashlib.blake2b(repr((seed, len(page), strongest)).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest) >> 1)
    return torch.randperm(len(page), generator=generator)[:m].sort().values.to(page.embeddings.device)
