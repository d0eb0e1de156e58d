"""What a compressor may ask of a layer's attention: one number per visual token, computed while the layer runs.

Each signal is a small request, such as `Propagated(layer=25, steps=6)`. The tap groups the requests of a
layer by kind and calls `measure` once per page and kind, with post-RoPE queries and keys, so that no
attention matrix outlives its layer. Everything is computed in float32.

Shapes: H heads, G key-value heads, T tokens in the sequence, N of them visual, d the head dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from anchorfold.focus import layer_score, require_steps


@dataclass(frozen=True)
class LayerView:
    """One layer's attention on one page: `query (H, T, d)`, `key (G, T, d)`, and the positions `visual (N,)`.

    `allowed` is what the layer's mask lets each position see: `(1 or H, T, T)` of bool or added logits, or None
    for everything. Padding is already cut away.
    """

    query: Tensor
    key: Tensor
    scaling: float
    visual: Tensor
    allowed: Tensor | None = None

    def last_text(self, count: int) -> Tensor:
        """Positions of the last `count` tokens that are not visual; the last of all tokens if there is none."""
        text = torch.ones(self.query.shape[1], dtype=torch.bool, device=self.query.device)
        text[self.visual] = False
        if not bool(text.any()):
            text[-1] = True
        return text.nonzero().flatten()[-count:]

    def logits(self, rows: Tensor, columns: Tensor | None, heads: slice) -> Tensor:
        """Masked attention logits `(heads, rows, columns)` in float32; all columns if None."""
        share = self.query.shape[0] // self.key.shape[0]
        query = self.query[heads].index_select(1, rows).float()
        key = self.key if columns is None else self.key.index_select(1, columns)
        head_numbers = range(*heads.indices(self.query.shape[0]))
        key = key[[h // share for h in head_numbers]].float()
        logits = torch.bmm(query * self.scaling, key.transpose(1, 2))
        if self.allowed is not None:
            mask = self.allowed if len(self.allowed) == 1 else self.allowed[heads]
            mask = mask.index_select(1, rows)
            mask = mask if columns is None else mask.index_select(2, columns)
            logits = logits.masked_fill_(~mask, float("-inf")) if mask.dtype == torch.bool else logits.add_(mask)
        return logits

    def head_chunks(self, width: int) -> Iterator[slice]:
        """Slices of heads whose `(N, width)` matrices fit the working memory."""
        budget = WORKING_BYTES[self.query.device.type == "cpu"]
        step = max(1, budget // (4 * max(len(self.visual) * width, 1)))
        for start in range(0, self.query.shape[0], step):
            yield slice(start, start + step)


# A few megabytes stay in a processor's cache; an accelerator wants fewer, larger kernels.
WORKING_BYTES = {True: 8 * 2**20, False: 64 * 2**20}
ROW_BLOCK_BYTES = 64 * 2**20


def _rows(logits: Tensor) -> Tensor:
    """Softmax rows; a row that may see nothing becomes uniform."""
    weights = logits.softmax(-1)
    return (
        torch.where(weights.isnan(), 1.0 / logits.shape[-1], weights)
        if bool(weights[..., 0].isnan().any())
        else weights
    )


@dataclass(frozen=True)
class Propagated:
    """The layer's score `(N,)` after `steps` of Recursive Attention Propagation (mean 1)."""

    layer: int
    steps: int = 6

    @classmethod
    def measure(cls, requests: Sequence[Self], view: LayerView) -> dict[Self, Tensor]:
        """All depths of one layer in one walk."""
        depths = sorted({r.steps for r in requests})
        for steps in depths:
            require_steps(steps)
        n = len(view.visual)
        support = {k: view.query.new_empty(view.query.shape[0], n, dtype=torch.float32) for k in depths}
        for heads in view.head_chunks(n):
            for steps, values in cls._walk(view, heads, depths):
                support[steps][heads] = values
        return {r: layer_score(support[r.steps]) for r in requests}

    @staticmethod
    def _walk(view: LayerView, heads: slice, depths: list[int]) -> Iterator[tuple[int, Tensor]]:
        n = len(view.visual)
        block = max(1, ROW_BLOCK_BYTES // (4 * max(n, 1)))
        # Rows renormalised over the visual keys are a softmax over those keys alone.
        whole = _rows(view.logits(view.visual, view.visual, heads)) if n <= block else None
        count = len(range(*heads.indices(view.query.shape[0])))
        state = torch.full((count, 1, n), 1.0 / max(n, 1), device=view.query.device)
        for step in range(1, depths[-1] + 1):
            if whole is not None:
                state = torch.bmm(state, whole)
            else:  # too large to keep: build the rows anew, a block at a time
                moved = torch.zeros_like(state)
                for start in range(0, n, block):
                    rows = view.visual[start : start + block]
                    moved += torch.bmm(state[..., start : start + block], _rows(view.logits(rows, view.visual, heads)))
                state = moved
            if step in depths:
                yield step, state[:, 0]


@dataclass(frozen=True)
class InDegree:
    """Attention `(N,)` that a token receives from the visual tokens: columns of the full softmax, mean over heads."""

    layer: int

    @classmethod
    def measure(cls, requests: Sequence[Self], view: LayerView) -> dict[Self, Tensor]:
        """Text keys stay in the denominator: rows are not renormalised."""
        n, t = len(view.visual), view.key.shape[1]
        received = torch.zeros(n, device=view.query.device)
        block = max(1, ROW_BLOCK_BYTES // (4 * max(t, 1)))
        for heads in view.head_chunks(t):
            for start in range(0, n, block):
                weights = _rows(view.logits(view.visual[start : start + block], None, heads))
                received += weights.sum((0, 1)).index_select(0, view.visual)
        return dict.fromkeys(requests, received / view.query.shape[0])


@dataclass(frozen=True)
class FromLastText:
    """Attention `(N,)` from the page's last text tokens to the visual tokens, mean over those tokens and heads.

    One token: the page's global token. Several: learned tokens that were appended to the page.
    """

    layer: int
    tokens: int = 1

    @classmethod
    def measure(cls, requests: Sequence[Self], view: LayerView) -> dict[Self, Tensor]:
        """Rows of the full softmax."""
        rows = view.last_text(max(r.tokens for r in requests))
        weights = _rows(view.logits(rows, None, slice(0, view.query.shape[0]))).index_select(2, view.visual)
        return {r: weights[:, -r.tokens :].mean((0, 1)) for r in requests}


Signal = Propagated | InDegree | FromLastText
