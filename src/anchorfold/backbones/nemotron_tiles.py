"""How Nemotron cuts a page into square tiles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor

ENOUGH_AREA = 0.6  # tiles that hold 60 % of the page's pixels are enough


@cache
def tilings(most: int) -> list[tuple[int, int]]:
    """All (across, down) of at most `most` tiles, fewer tiles first.

    Equal numbers of tiles stand in the order of a Python set filled this way, as in the published preprocessing. It
    decides for square pages, where three by two and two by three are equally good.
    """
    shapes = {(a, d) for n in range(1, most + 1) for a in range(1, n + 1) for d in range(1, n + 1) if a * d <= most}
    return sorted(shapes, key=lambda shape: shape[0] * shape[1])


def choose_tiling(width: int, height: int, side: int, most: int) -> tuple[int, int]:
    """Tiles across and down: the shape closest to the page's that keeps enough of its pixels; the first of equals."""
    page = width / height

    def quality(shape: tuple[int, int]) -> float:
        aspect = shape[0] / shape[1]
        area = shape[0] * shape[1] * side * side / (width * height)
        return min(area, ENOUGH_AREA) * min(aspect / page, page / aspect)

    return max(tilings(most), key=quality)


def cut(image: Image.Image, across: int, down: int, side: int, thumbnail: bool) -> list[Image.Image]:
    """`across x down` tiles of `side` pixels in reading order, then perhaps the whole page as one more."""
    page = image.resize((across * side, down * side), Image.Resampling.BICUBIC)
    tiles = [
        page.crop((x * side, y * side, (x + 1) * side, (y + 1) * side)) for y in range(down) for x in range(across)
    ]
    return tiles + [image.resize((side, side), Image.Resampling.BICUBIC)] * thumbnail


def pixels(tiles: Sequence[Image.Image]) -> Tensor:
    """`(tiles, 3, side, side)` from -1 to 1, as SigLIP reads them."""
    values = np.stack([np.asarray(tile, np.float32) for tile in tiles])
    return torch.from_numpy(values / 127.5 - 1).permute(0, 3, 1, 2).contiguous()
