"""Pages before and after compression, and their patch grids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from anchorfold.attention.signals import Signal
from anchorfold.core.fold import CompressedPage, Projection
from anchorfold.core.numerics import unit, upcast


@dataclass(frozen=True)
class Tile:
    """Rectangle of a page (as fractions of its width and height) with `rows x columns` patches."""

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
    """Positions of a page's visual tokens: one tile, or several and a thumbnail, in token order.

    Examples:
        >>> grid = PatchGrid.tiled(across=2, down=1, rows=16, columns=16, thumbnail=True)
        >>> len(grid), grid.boxes()[0]
        (768, tensor([0.0000, 0.0000, 0.0312, 0.0625]))
    """

    tiles: tuple[Tile, ...]

    @classmethod
    def single(cls, rows: int, columns: int) -> PatchGrid:
        """Return a grid of one tile that covers the page."""
        return cls((Tile(rows, columns),))

    @classmethod
    def tiled(cls, across: int, down: int, rows: int, columns: int, thumbnail: bool) -> PatchGrid:
        """Return `across x down` tiles of `rows x columns` patches in reading order, and optionally a thumbnail."""
        tiles = [
            Tile(rows, columns, x / across, y / down, (x + 1) / across, (y + 1) / down)
            for y in range(down)
            for x in range(across)
        ]
        return cls(tuple(tiles + [Tile(rows, columns)] * thumbnail))

    def __len__(self) -> int:
        return sum(map(len, self.tiles))

    def boxes(self) -> Tensor:
        """Return `(N, 4)` left, top, right and bottom of every token as fractions of the page."""
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
    """A page before compression.

    Attributes:
        hidden: `(N, d)` final hidden states of the visual tokens before the projection.
        project: retrieval projection in float32.
        signals: captured attention signals, `(N,)` each.
        grid: positions of the tokens.
        groups: groups that several compressors share, computed once.

    Examples:
        >>> PageState(hidden=torch.tensor([[3.0, 4.0]]), project=lambda z: z).embeddings
        tensor([[0.6000, 0.8000]])
    """

    hidden: Tensor
    project: Projection
    signals: Mapping[Signal, Tensor] = field(default_factory=dict)
    grid: PatchGrid | None = None
    groups: dict[tuple[str | int, ...], Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.hidden)

    @cached_property
    def embeddings(self) -> Tensor:
        """Uncompressed vectors `(N, d_r)`: projected and L2-normalized."""
        return unit(self.project(upcast(self.hidden)))

    def mean_signal(self, signals: Iterable[Signal]) -> Tensor:
        """Return the mean `(N,)` of several signals."""
        return torch.stack([self.signals[s] for s in signals]).mean(0)


@dataclass(frozen=True)
class EncodedPage(CompressedPage):
    """A compressed page with the positions of its tokens.

    Examples:
        >>> (page,) = model.encode_documents(images[:1], anchorfold.AnchorFold(ratio=0.25))
        >>> page.vectors.shape, page.full, page.groups.shape
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
        """Number of vectors N before compression."""
        return len(self.groups)
