"""Visual attention graphs: the paper's, and variants for causal backbones and for attention sinks.

Row i of a graph is the distribution of token i's attention over the page's visual tokens. Graphs are computed from the
queries and keys of a layer, for a few heads at a time; rows that do not fit into memory are computed again in each
propagation step.

Shapes: H heads, G key-value heads, T tokens in the sequence, N of them visual, d the head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

# A few megabytes fit into a CPU cache; accelerators are faster with fewer, larger kernels.
WORKING_BYTES = {True: 8 * 2**20, False: 64 * 2**20}
ROW_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class LayerView:
    """Attention inputs of one layer for one page, without padding.

    Attributes:
        query: `(H, T, d)`.
        key: `(G, T, d)`.
        scaling: factor of the logits.
        visual: positions `(N,)` of the visual tokens.
        allowed: `(1 or H, T, T)` mask, boolean or additive; None without restrictions.
        value: `(G, T, d)`; required by graphs that weight attention by the length of values.
    """

    query: Tensor
    key: Tensor
    scaling: float
    visual: Tensor
    allowed: Tensor | None = None
    value: Tensor | None = None

    def last_text(self, count: int) -> Tensor:
        """Return positions of the last `count` non-visual tokens; of the last token if all are visual."""
        text = torch.ones(self.query.shape[1], dtype=torch.bool, device=self.query.device)
        text[self.visual] = False
        if not bool(text.any()):
            text[-1] = True
        return text.nonzero().flatten()[-count:]

    def logits(self, rows: Tensor, columns: Tensor | None, heads: slice) -> Tensor:
        """Return masked attention logits `(heads, rows, columns)` in float32; all columns if None."""
        heads_per_key = self.query.shape[0] // self.key.shape[0]
        query = self.query[heads].index_select(1, rows).float()
        key = self.key if columns is None else self.key.index_select(1, columns)
        key = key[[h // heads_per_key for h in range(*heads.indices(self.query.shape[0]))]].float()
        logits = torch.bmm(query * self.scaling, key.transpose(1, 2))
        mask = self.mask(rows, columns, heads)
        if mask is not None:
            logits = logits.masked_fill_(~mask, float("-inf")) if mask.dtype == torch.bool else logits.add_(mask)
        return logits

    def mask(self, rows: Tensor, columns: Tensor | None, heads: slice) -> Tensor | None:
        """Return the mask `(1 or heads, rows, columns)`, boolean or additive; None without restrictions."""
        if self.allowed is None:
            return None
        mask = self.allowed if len(self.allowed) == 1 else self.allowed[heads]
        mask = mask.index_select(1, rows)
        return mask if columns is None else mask.index_select(2, columns)

    def value_lengths(self, heads: slice) -> Tensor:
        """Return the lengths `(heads, N)` of the visual tokens' values."""
        if self.value is None:
            raise ValueError("this graph requires the values of the layer.")
        heads_per_key = self.query.shape[0] // self.key.shape[0]
        lengths: Tensor = torch.linalg.vector_norm(self.value.index_select(1, self.visual).float(), dim=-1)
        return lengths[[h // heads_per_key for h in range(*heads.indices(self.query.shape[0]))]]

    def row_block(self, columns: int) -> int:
        """Return the number of rows with that many columns that are computed at a time."""
        return max(1, ROW_BLOCK_BYTES // (4 * max(columns, 1)))

    def head_chunks(self, columns: int) -> Iterator[slice]:
        """Yield slices of heads whose `(N, columns)` matrices fit into the working memory."""
        budget = WORKING_BYTES[self.query.device.type == "cpu"]
        step = max(1, budget // (4 * max(len(self.visual) * columns, 1)))
        for start in range(0, self.query.shape[0], step):
            yield slice(start, start + step)


def softmax(logits: Tensor) -> Tensor:
    """Return softmax rows; fully masked rows become uniform."""
    weights = logits.softmax(-1)
    if not bool(weights[..., 0].isnan().any()):
        return weights
    return torch.where(weights.isnan(), 1.0 / logits.shape[-1], weights)


@dataclass(frozen=True)
class GraphKind:
    """How a visual graph is derived from a layer's queries, keys and mask.

    Attributes:
        logits: "masked" as the model computes them; "unmasked" without its mask; "mirrored" with masked logits
            replaced by those of the opposite direction.
        symmetric: add the transposed graph and normalise the rows.
        debiased: divide the support of a token by its support in a graph with uniform rows over the allowed tokens.
        without_sinks: remove attention to tokens of extreme in-degree in a head.
        value_weighted: multiply attention by the length of the attended token's value and normalise the rows.
            Attention sinks have short values: they receive attention without influence on other tokens.
        tower: computed in the vision tower, among the patches of an image, instead of in the language layers.
    """

    logits: Literal["masked", "unmasked", "mirrored"] = "masked"
    symmetric: bool = False
    debiased: bool = False
    without_sinks: bool = False
    value_weighted: bool = False
    tower: bool = False


GRAPHS = {
    "attention": GraphKind(),
    "symmetric": GraphKind(symmetric=True),
    "unmasked": GraphKind("unmasked"),
    "unmasked-symmetric": GraphKind("unmasked", symmetric=True),
    "mirrored": GraphKind("mirrored"),
    "mirrored-symmetric": GraphKind("mirrored", symmetric=True),
    "debiased": GraphKind(debiased=True),
    "without-sinks": GraphKind(without_sinks=True),
    "without-sinks-symmetric": GraphKind(symmetric=True, without_sinks=True),
    "value-weighted": GraphKind(value_weighted=True),
    "value-weighted-symmetric": GraphKind(symmetric=True, value_weighted=True),
    "value-weighted-mirrored-symmetric": GraphKind("mirrored", symmetric=True, value_weighted=True),
    "vision-tower": GraphKind(tower=True),
    "vision-tower-symmetric": GraphKind(symmetric=True, tower=True),
}
SINK_DEVIATIONS = 3.0  # in-degrees more than this many standard deviations above the mean belong to sinks


class VisualGraph:
    """Row-stochastic graphs `(heads, N, N)` of some heads of a layer.

    Args:
        view: attention inputs of the layer.
        heads: heads to compute.
        kind: derivation of the graph.
    """

    def __init__(self, view: LayerView, heads: slice, kind: GraphKind) -> None:
        self.view, self.heads, self.kind = view, heads, kind
        self.n = len(view.visual)
        self.count = len(range(*heads.indices(view.query.shape[0])))
        self.block = view.row_block(self.n)
        self._stored = self._rows(slice(0, self.n)) if self.n <= self.block else None
        self._sinks = self._find_sinks() if kind.without_sinks else None
        self._row_sums = 1 + self._forward(self.uniform() * self.n) if kind.symmetric else None

    def uniform(self) -> Tensor:
        """Return the uniform distribution `(heads, 1, N)`."""
        return torch.full((self.count, 1, self.n), 1.0 / max(self.n, 1), device=self.view.query.device)

    def step(self, state: Tensor) -> Tensor:
        """Propagate a distribution `(heads, 1, N)` by one step."""
        if self._row_sums is None:
            return self._forward(state)
        state = state / self._row_sums
        return self._forward(state) + self._backward(state)

    def _forward(self, state: Tensor) -> Tensor:
        """Return `state G`."""
        if self._sinks is None:
            return self._follow(state)
        removed, remaining = self._sinks
        return self._follow(state / remaining).masked_fill(removed, 0)

    def _backward(self, state: Tensor) -> Tensor:
        """Return `state G^T`."""
        if self._sinks is None:
            return self._follow_back(state)
        removed, remaining = self._sinks
        return self._follow_back(state.masked_fill(removed, 0)) / remaining

    def _find_sinks(self) -> tuple[Tensor, Tensor]:
        """Return the mask `(heads, 1, N)` of sinks, and the share of each token's attention that is not to sinks."""
        received = self._follow(self.uniform())
        deviation, mean = torch.std_mean(received, -1, correction=0, keepdim=True)
        removed = received > mean + SINK_DEVIATIONS * deviation
        remaining = self._follow_back((~removed).to(received.dtype))
        return removed, remaining.clamp(min=torch.finfo(remaining.dtype).tiny)

    def _follow(self, state: Tensor) -> Tensor:
        if self._stored is not None:
            return torch.bmm(state, self._stored)
        moved = torch.zeros_like(state)
        for rows in self._blocks():
            moved += torch.bmm(state[..., rows], self._rows(rows))
        return moved

    def _follow_back(self, state: Tensor) -> Tensor:
        if self._stored is not None:
            return torch.bmm(state, self._stored.transpose(1, 2))
        return torch.cat([torch.bmm(state, self._rows(rows).transpose(1, 2)) for rows in self._blocks()], -1)

    def _blocks(self) -> Iterator[slice]:
        for start in range(0, self.n, self.block):
            yield slice(start, start + self.block)

    def _rows(self, rows: slice) -> Tensor:
        """Return rows `(heads, rows, N)` of the graph before sinks are removed and it is symmetrised."""
        # Rows renormalised over the visual keys equal a softmax over those keys alone.
        logits = self._logits(self.view.visual[rows])
        if self.kind.value_weighted:
            logits = logits.add_(self.view.value_lengths(self.heads).clamp(min=1e-30).log()[:, None])
        return softmax(logits)

    def _logits(self, rows: Tensor) -> Tensor:
        view, visual = self.view, self.view.visual
        if self.kind.logits == "masked" or view.allowed is None:
            return view.logits(rows, visual, self.heads)
        unmasked = replace(view, allowed=None)
        logits = unmasked.logits(rows, visual, self.heads)
        if self.kind.logits == "unmasked":
            return logits
        forward = _is_allowed(view.mask(rows, visual, self.heads))
        neither = ~(forward | _is_allowed(view.mask(visual, rows, self.heads)).transpose(1, 2))
        opposite = logits if len(rows) == self.n else unmasked.logits(visual, rows, self.heads)
        mirrored = torch.where(forward, logits, opposite.transpose(1, 2))
        return mirrored.masked_fill_(neither, float("-inf")) if bool(neither.any()) else mirrored


def propagate_graph(graph: VisualGraph, depths: list[int]) -> Iterator[tuple[int, Tensor]]:
    """Yield the support `(heads, N)` of a uniform distribution after each of the depths, which are in order."""
    state = graph.uniform()
    expected = _uniform_graph(graph.view) if graph.kind.debiased else None
    position = graph.uniform()[:1]
    for step in range(1, depths[-1] + 1):
        state = graph.step(state)
        if expected is not None:
            position = position @ expected
        if step in depths:
            support = state[:, 0]
            yield step, support if expected is None else support / position[:, 0].clamp(min=1e-30)


def _uniform_graph(view: LayerView) -> Tensor:
    """Return the graph `(1, N, N)` whose rows are uniform over the tokens that the mask allows for all heads."""
    n = len(view.visual)
    mask = view.mask(view.visual, view.visual, slice(None))
    allowed = torch.ones(1, n, n, device=view.query.device) if mask is None else _is_allowed(mask)[:1].float()
    return allowed / allowed.sum(-1, keepdim=True).clamp(min=1)


def _is_allowed(mask: Tensor | None) -> Tensor:
    assert mask is not None  # called only where the view has a mask
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
