"""AnchorFold: Recursive Attention Propagation, then folding. Includes the paper's ablations."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch

from anchorfold.attention.graphs import GRAPHS
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import PropagatedAttention
from anchorfold.compressors.base import BudgetCompressor, keep_tokens
from anchorfold.core.focus import centrality, require_steps, similarity_graph
from anchorfold.core.fold import CompressedPage, fold_onto, top_tokens
from anchorfold.core.numerics import require_finite, upcast
from anchorfold.errors import InvalidArgumentError
from anchorfold.page import PageState

SEED_DIMENSIONS = 8


class AnchorFold(BudgetCompressor):
    """The paper's method: the most central tokens become anchors, and all other tokens fold into the nearest anchor.

    Args:
        ratio: share of a page's vectors to keep, in (0, 1].
        cap: maximum vectors per page. Give either `ratio` or `cap`.
        steps: propagation depth K; the backbone's calibrated value (6 in the paper) if None.
        window: first and last layer, zero-based, inclusive; the backbone's calibrated window if None. With a graph of
            the vision tower: first and last of its blocks with full attention; at 70-90 % of their number if None.
        anchors: "centrality"; "random" with `seed` (ablation without centrality selection); or "similarity" (not in the
            paper): centrality in the page's similarity graph instead of attention, if only vectors are available. It
            also determines the weights.
        folding: False keeps the vectors of the anchors only (ablation without folding).
        weights: "centrality", or "uniform" (ablation without centrality weighting).
        graph: visual attention graph of the centrality, one of `anchorfold.attention.graphs.GRAPHS`; "attention" is the
            paper's. "symmetric" is robust to attention sinks; "unmasked" and "mirrored" are for causal backbones;
            "vision-tower" is read before the language layers.
        seed: seed of random anchors, which differ between pages.

    Examples:
        >>> page, *_ = model.encode_documents(images, AnchorFold(ratio=0.1))
        >>> page.full, len(page)
        (128, 13)
    """

    name = "anchorfold"
    title = "AnchorFold"
    # Ablations of the paper: each changes one option.
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
        graph: str = "attention",
        seed: int = 0,
    ) -> None:
        super().__init__(ratio, cap=cap)
        if steps is not None:
            require_steps(steps)
        if anchors not in ("centrality", "random", "similarity"):
            raise ValueError(f'anchors must be "centrality", "random" or "similarity", got {anchors!r}.')
        if weights not in ("centrality", "uniform"):
            raise ValueError(f'weights must be "centrality" or "uniform", got {weights!r}.')
        if graph not in GRAPHS:
            raise InvalidArgumentError(f"graph must be one of {', '.join(GRAPHS)}, got {graph!r}.")
        self.steps, self.window, self.graph, self.seed = steps, window, graph, seed
        self.anchors, self.folding, self.weights = anchors, folding, weights

    def signals(self, settings: LayerSettings) -> Sequence[PropagatedAttention]:
        """Return the layer scores of the window at depth K; nothing for the similarity graph."""
        if self.anchors == "similarity":
            return ()
        if reason := self.unsupported_reason(settings):
            raise InvalidArgumentError(reason)
        first, last = self.window or (settings.tower_window if GRAPHS[self.graph].tower else settings.window)
        steps = self.steps or settings.steps
        return [PropagatedAttention(layer, steps, self.graph) for layer in range(first, last + 1)]

    def unsupported_reason(self, settings: LayerSettings) -> str | None:
        """Reject graphs of the vision tower for models without one."""
        if settings.tower or self.anchors == "similarity" or not GRAPHS[self.graph].tower:
            return None
        return (
            f"the graph {self.graph} requires a vision tower whose patches correspond to the visual tokens, which this "
            "model does not have: choose another graph."
        )

    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> CompressedPage:
        """Select anchors by centrality and fold the page onto them."""
        require_finite("hidden", page.hidden)
        if self.anchors == "similarity":
            alpha = centrality([similarity_graph(page.embeddings)], self.steps or settings.steps)
        else:
            alpha = page.mean_signal(self.signals(settings)).to(page.hidden.device)
        require_finite("alpha", alpha)
        random = self.anchors == "random"
        anchors = random_tokens(page, m, self.seed) if random else self.select_anchors(page, alpha, m)
        if not self.folding:
            return keep_tokens(page, anchors)
        if self.weights == "uniform":
            alpha = torch.ones_like(alpha)
        return fold_onto(upcast(page.hidden), page.embeddings, anchors, alpha.to(page.embeddings.dtype), page.project)

    def select_anchors(self, page: PageState, alpha: torch.Tensor, m: int) -> torch.Tensor:
        """Return the anchors `(m,)` in page order."""
        return top_tokens(alpha, m)


def random_tokens(page: PageState, m: int, seed: int) -> torch.Tensor:
    """Draw positions `(m,)` without replacement, in page order; pages differ in their draws.

    The draw depends on the seed and on the positions of the page's largest values in a few dimensions, which rounding
    differences between batches and devices do not change.
    """
    largest = page.embeddings[:, :SEED_DIMENSIONS].argmax(0).tolist()
    digest = hashlib.blake2b(repr((seed, len(page), largest)).encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest) >> 1)
    return torch.randperm(len(page), generator=generator)[:m].sort().values.to(page.embeddings.device)
