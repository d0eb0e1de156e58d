"""Why a page matched: which patches answered which word of the query, also on a compressed page.

Pure tensor functions. For each query vector its best page vector is found, and its score is spread over the patches
that went into that vector, by their share. A word's map is the sum over its query vectors, the query's map the sum
over its words: all on one scale, and they add up to the page's score (negative matches light nothing).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anchorfold.fold import Folded
from anchorfold.page import PatchGrid
from anchorfold.scoring import maxsim


@dataclass(frozen=True)
class Evidence:
    """How one page answers one query.

    `words` as the user wrote them; `scores (W,)` what each adds to the page's `score`; `maps (W, N)` the same
    spread over the page's patches; `score` the MaxSim score, special tokens of the query included.
    """

    words: tuple[str, ...]
    scores: Tensor
    maps: Tensor
    score: float

    @property
    def whole(self) -> Tensor:
        """`(N,)` the map of all words together."""
        return self.maps.sum(0)


def evidence(query: Tensor, labels: Sequence[int | None], words: Sequence[str], page: Folded) -> Evidence:
    """The evidence for a query on a page.

    Args:
        query: `(T, d)` query vectors.
        labels: for each query vector the number of its word; None for special tokens, which light nothing.
        words: the query's words.
        page: the page, compressed or full.
    """
    if len(labels) != len(query):
        raise ValueError(f"{len(query)} query vectors have {len(labels)} labels: there must be one each.")
    tokens = len(page.groups)
    maps = torch.zeros(len(words), tokens)
    scores = torch.zeros(len(words))
    if len(query) and len(page.vectors):
        best, vector = (query.float() @ page.vectors.float().T).max(1)
        for value, number, label in zip(best, vector, labels, strict=True):
            if label is None:
                continue
            scores[label] += value
            members = page.groups == number
            maps[label, members] += value.clamp(min=0) * page.weights[members].float()
    total = float(maxsim([query], [page])[0, 0]) if len(page.vectors) else 0.0
    return Evidence(tuple(words), scores, maps, total)


def raster(values: Tensor, grid: PatchGrid, columns: int, rows: int) -> Tensor:
    """`(rows, columns)` a picture of patch values `(N,)`: each patch paints its rectangle of the page.

    Where tiles and a thumbnail overlap their values add up, a large patch's spread thin over its area.
    """
    picture = torch.zeros(rows, columns)
    boxes = grid.boxes()
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    smallest = area.min() if len(area) else torch.tensor(1.0)
    scale = torch.tensor([columns, rows, columns, rows])
    edges = (boxes * scale).round().long()
    for value, (left, top, right, bottom), size in zip(values.tolist(), edges.tolist(), area.tolist(), strict=True):
        if value > 0:
            picture[top : max(bottom, top + 1), left : max(right, left + 1)] += value * float(smallest) / size
    return picture
