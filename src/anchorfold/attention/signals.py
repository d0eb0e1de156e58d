"""Signals: values per visual token that compressors derive from a layer's attention.

A signal is a request such as `PropagatedAttention(layer=25, steps=6)`. The tap groups the requests of a layer by type
and calls `measure` once per page and type, with post-RoPE queries and keys. No attention matrix outlives its layer, and
everything is computed in float32.

Shapes: H heads, G key-value heads, T tokens in the sequence, N of them visual, d the head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from anchorfold.attention.graphs import GRAPHS, LayerView, VisualGraph, propagate_graph, softmax
from anchorfold.core.focus import layer_score, require_steps


@dataclass(frozen=True)
class PropagatedAttention:
    """Score `(N,)` of the layer after `steps` steps of Recursive Attention Propagation; its mean is 1.

    Attributes:
        layer: number of the attention layer, or of the block among those with full attention in the vision tower.
        steps: propagation depth K.
        graph: name of the visual graph, one of `GRAPHS`; "attention" is the paper's.
    """

    layer: int
    steps: int = 6
    graph: str = "attention"

    @property
    def suits_causal(self) -> bool:
        """Whether the graph corrects for a causal mask, or has none."""
        kind = GRAPHS[self.graph]
        return kind.logits != "masked" or kind.debiased or kind.tower

    @property
    def tower(self) -> bool:
        """Whether it is read in the vision tower."""
        return GRAPHS[self.graph].tower

    @classmethod
    def measure(cls, requests: Sequence[Self], view: LayerView) -> dict[Self, Tensor]:
        """Compute all requested depths of one layer in one propagation per graph."""
        scores: dict[Self, Tensor] = {}
        for name in dict.fromkeys(r.graph for r in requests):
            depths = sorted({r.steps for r in requests if r.graph == name})
            for steps in depths:
                require_steps(steps)
            n = len(view.visual)
            support = {k: view.query.new_empty(view.query.shape[0], n, dtype=torch.float32) for k in depths}
            for heads in view.head_chunks(n):
                for steps, values in propagate_graph(VisualGraph(view, heads, GRAPHS[name]), depths):
                    support[steps][heads] = values
            scores |= {r: layer_score(support[r.steps]) for r in requests if r.graph == name}
        return scores


@dataclass(frozen=True)
class InDegree:
    """Attention `(N,)` received from the visual tokens: column sums of the full softmax, mean over heads."""

    layer: int
    suits_causal: ClassVar[bool] = False

    @classmethod
    def measure(cls, requests: Sequence[Self], view: LayerView) -> dict[Self, Tensor]:
        """Compute the in-degrees. Text keys stay in the denominator: rows are not renormalised."""
        n, t = len(view.visual), view.key.shape[1]
        received = torch.zeros(n, device=view.query.device)
        block = view.row_block(t)
        for heads in view.head_chunks(t):
            for start in range(0, n, block):
                weights = softmax(view.logits(view.visual[start : start + block], None, heads))
                received += weights.sum((0, 1)).index_select(0, view.visual)
        return dict.fromkeys(requests, received / view.query.shape[0])


@dataclass(frozen=True)
class LastTextAttention:
    """Attention `(N,)` from the page's last text tokens to the visual tokens, mean over those tokens and heads.

    The last token is the page's global token; several tokens are learned tokens appended to the page.
    """

    layer: int
    tokens: int = 1
    suits_causal: ClassVar[bool] = False

    @classmethod
    def measure(cls, requests: Sequence[Self], view: LayerView) -> dict[Self, Tensor]:
        """Select rows of the full softmax."""
        rows = view.last_text(max(r.tokens for r in requests))
        weights = softmax(view.logits(rows, None, slice(0, view.query.shape[0]))).index_select(2, view.visual)
        return {r: weights[:, -r.tokens :].mean((0, 1)) for r in requests}


Signal = PropagatedAttention | InDegree | LastTextAttention
