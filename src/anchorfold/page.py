"""A page on its way from the encoder to the index."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from anchorfold._numerics import unit, widen
from anchorfold.attention.signals import Signal
from anchorfold.fold import Folded, Projection


@dataclass(frozen=True)
class Tile:
    """A rectangle of the page (fractions of its width and height) cut into `rows x columns` patches."""

    rows: int
    columns: int
    left: float = 0.0
    top: float = 0.0
    right: float = 1.0
    bottom: float = 1.0

    def __len__(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class PatchGrid:
    """Where the page's visual tokens lie: one tile, or several and a thumbnail, in token order.

    >>> grid = PatchGrid.tiled(across=2, down=1, rows=16, columns=16, thumbnail=True)
    >>> len(grid), grid.boxes()[0]
    (768, tensor([0.0000, 0.0000, 0.0312, 0.0625]))
    """

    tiles: tuple[Tile, ...]

    @classmethod
    def single(cls, rows: int, columns: int) -> PatchGrid:
        """One tile that covers the page."""
        return cls((Tile(rows, columns),))

    @classmethod
    def tiled(cls, across: int, down: int, rows: int, columns: int, thumbnail: bool) -> PatchGrid:
        """`across x down` equal tiles in reading order of `rows x columns` patches; perhaps the whole page last."""
        tiles = [
            Tile(rows, columns, x / across, y / down, (x + 1) / across, (y + 1) / down)
            for y in range(down)
            for x in range(across)
        ]
        return cls(tuple(tiles + [Tile(rows, columns)] * thumbnail))

    def __len__(self) -> int:
        return sum(map(len, self.tiles))

    def boxes(self) -> Tensor:
        """`(N, 4)` left, top, right, bottom of every token as fractions of the page."""
        parts = []
        for tile in self.tiles:
            x = torch.linspace(tile.left, tile.right, tile.columns + 1)
            y = torch.linspace(tile.top, tile.bottom, tile.rows + 1)
            left, right = (e.repeat(tile.rows) for e in (x[:-1], x[1:]))
            top, bottom = (e.repeat_interleave(tile.columns) for e in (y[:-1], y[1:]))
            parts.append(torch.stack((left, top, right, bottom), 1))
        return torch.cat(parts) if parts else torch.zeros(0, 4)


@dataclass
class PageState:
    """What an encoder knows of one page before compression.

    `hidden (N, d)` final hidden states of the visual tokens before the projection; `project` the retrieval
    projection in float32; `signals` what the attention tap collected, `(N,)` each; `grid` where tokens lie.

    >>> page = PageState(hidden=torch.tensor([[3.0, 4.0]]), project=lambda z: z)
    >>> page.embeddings
    tensor([[0.6000, 0.8000]])
    """

    hidden: Tensor
    project: Projection
    signals: Mapping[Signal, Tensor] = field(default_factory=dict)
    grid: PatchGrid | None = None

    def __len__(self) -> int:
        return len(self.hidden)

    @cached_property
    def embeddings(self) -> Tensor:
        """`(N, d_r)` the full index: projected and L2-normalised."""
        return unit(self.project(widen(self.hidden)))

    def mean_signal(self, signals: Iterable[Signal]) -> Tensor:
        """`(N,)` the average of some signals."""
        return torch.stack([self.signals[s] for s in signals]).mean(0)


@dataclass(frozen=True)
class EncodedPage(Folded):
    """A compressed page and where its tokens lie. `full` is N, the number of vectors before compression.

    >>> (page,) = model.encode_pages(images[:1], anchorfold.AnchorFold(ratio=0.25))
    >>> page.vectors.shape, page.full, page.groups.shape  # which of the vectors each patch went into
    (torch.Size([32, 128]), 128, torch.Size([128]))
    >>> page
    EncodedPage(vectors=(32, 128) float32, full=128, grid=16x8)
    """

    grid: PatchGrid | None = None

    def __repr__(self) -> str:
        dtype = str(self.vectors.dtype).removeprefix("torch.")
        tiles = self.grid.tiles if self.grid is not None else ()
        grid = " + ".join(f"{tile.rows}x{tile.columns}" for tile in tiles) or None
        return f"EncodedPage(vectors={tuple(self.vectors.shape)} {dtype}, full={self.full}, grid={grid})"

    @property
    def full(self) -> int:
        """Vectors of the page before compression."""
        return len(self.groups)
