"""Attention of a vision tower: scores of an image's patches, averaged over the patches of each visual token.

Attention of a tower is within one image (a page, or a tile of it) and has no causal mask. A visual token is merged from
`k x k` patches, with `k` from 1 (ColPali) to 4 (ColGemma3).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anchorfold.attention.graphs import LayerView
from anchorfold.attention.model_lock import current_thread_only
from anchorfold.attention.signals import PropagatedAttention, Signal
from anchorfold.errors import UnreadableAttentionError

TOWERS = ("visual", "vision_tower", "vision_model")  # names in the models of transformers
FULL_ATTENTION = "fullatt_block_indexes"  # of Qwen2.5-VL; the attention of its other blocks is within windows


@dataclass(frozen=True)
class VisionTower:
    """A vision tower, and the attention modules of its blocks in which all patches of an image attend to each other."""

    module: nn.Module
    blocks: list[nn.Module]


def find_tower(model: nn.Module) -> VisionTower | None:
    """Return the vision tower of a model, or None if it has none."""
    for name, module in model.named_modules():
        if name.rpartition(".")[2] in TOWERS:
            # Those of transformers have the flag, PyTorch's in pooling heads do not.
            attention = [
                m for m in module.modules() if type(m).__name__.endswith("Attention") and hasattr(m, "is_causal")
            ]
            blocks = [attention[i] for i in getattr(module, FULL_ATTENTION, range(len(attention)))]
            return VisionTower(module, blocks) if blocks else None
    return None


class TowerScores:
    """Scores of the patches in a forward pass, and of the visual tokens that are merged from them.

    Args:
        tower: the vision tower.
        signals: signals to compute; their layers are numbers of the tower's blocks.
    """

    def __init__(self, tower: VisionTower, signals: Sequence[PropagatedAttention]) -> None:
        self.tower, self.signals = tower, list(signals)
        self.reset()

    def reset(self) -> None:
        """Discard the values of the last forward pass."""
        self.patches: dict[PropagatedAttention, list[Tensor]] = {signal: [] for signal in self.signals}
        self._shapes: list[tuple[int, int]] | None = None

    @property
    def complete(self) -> bool:
        """Whether the tower ran and all signals were computed."""
        return all(self.patches.values())

    def measure(self, block: int, views: Iterator[LayerView]) -> None:
        """Compute the signals of a block from its attention inputs for each image."""
        requests = [signal for signal in self.signals if signal.layer == block]
        for view in views:
            for signal, score in PropagatedAttention.measure(requests, view).items():
                self.patches[signal].append(score)

    @contextmanager
    def reading_shapes(self) -> Iterator[None]:
        """Read the image shapes that are passed to the towers of Qwen models: `(images, 3)` time, height and width."""

        @current_thread_only
        def read(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            grid = kwargs.get("grid_thw", args[1] if len(args) > 1 else None)
            if grid is not None:
                self._shapes = [(h, w) for t, h, w in grid.tolist() for _ in range(t)]

        with self.tower.module.register_forward_pre_hook(read, with_kwargs=True):
            yield

    def tokens(self, counts: Sequence[int]) -> list[dict[Signal, Tensor]]:
        """Return the scores of each page's visual tokens, given their numbers per page."""
        pages: list[dict[Signal, Tensor]] = [{} for _ in counts]
        for signal, images in self.patches.items():
            patches, tokens = sum(map(len, images)), sum(counts)
            k = math.isqrt(patches // max(tokens, 1))
            merged = self._merge(images, k) if k * k * tokens == patches else None
            if merged is None:
                raise UnreadableAttentionError(
                    f"the {patches} patches of {type(self.tower.module).__name__} do not correspond to {tokens} visual "
                    "tokens: choose a graph of the language layers."
                )
            for page, values in zip(pages, torch.cat(merged).split(list(counts)), strict=True):
                page[signal] = values
        return pages

    def _merge(self, images: list[Tensor], k: int) -> list[Tensor] | None:
        """Return the mean scores of the `k x k` patches of each token, or None if images are not divisible."""
        if self._shapes is None:
            sides = [math.isqrt(len(scores)) for scores in images]
            if any(side % k or side * side != len(scores) for side, scores in zip(sides, images, strict=True)):
                return None
            grids = (scores.view(side // k, k, -1, k) for side, scores in zip(sides, images, strict=True))
            return [grid.mean((1, 3)).flatten() for grid in grids]
        # The patches of a token are consecutive in Qwen's towers.
        tokens = [scores.view(-1, k * k).mean(1) for scores in images]
        tower: Any = self.tower.module
        if not hasattr(tower, FULL_ATTENTION):
            return tokens
        side = tower.window_size // tower.patch_size // k
        orders = (window_order(h // k, w // k, side) for h, w in self._shapes)
        return [scores[order.argsort().to(scores.device)] for scores, order in zip(tokens, orders, strict=True)]


def window_order(rows: int, columns: int, side: int) -> Tensor:
    """Return the tokens `(rows * columns,)` of an image in the order of a tower that processes window after window.

    Examples:
        >>> window_order(2, 4, side=2)
        tensor([0, 1, 4, 5, 2, 3, 6, 7])
    """
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    window = row // side * (columns // side + 1) + column // side
    return (window * rows * columns + row * columns + column).flatten().argsort()


def image_views(query: Tensor, key: Tensor, mask: Tensor | None, options: dict[str, Any]) -> Iterator[LayerView]:
    """Yield the attention inputs of each image in a call of a tower's attention function.

    Args:
        query: `(B, H, T, d)`, one image per row; FlashAttention gets all images of Qwen's towers in one row.
        key: `(B, H, T, d)`.
        mask: `(B or 1, 1 or H, T, T)`, or `(B, T)` for FlashAttention; None without padding.
        options: the other arguments of the attention function.
    """
    scaling = options.get("scaling") or query.shape[-1] ** -0.5
    starts = options.get("cu_seq_lens_q")
    bounds = [0, query.shape[2]] if starts is None else starts.tolist()
    for b in range(len(query)):
        allowed = None if mask is None else mask[min(b, len(mask) - 1)]
        if allowed is not None and allowed.ndim == 1:
            allowed = allowed.bool().expand(1, len(allowed), -1)
        for start, stop in itertools.pairwise(bounds):
            image = torch.arange(stop - start, device=query.device)
            yield LayerView(query[b, :, start:stop], key[b, :, start:stop], scaling, image, allowed)
