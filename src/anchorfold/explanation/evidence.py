"""Score contribution of each query word and patch, also on compressed pages.

Pure tensor functions. The score of a query vector is that of its best page vector. It is distributed over the patches
that were folded into that vector, by their weights. The map of a word is the sum over its query vectors, the map of the
query the sum over its words, so that all maps share one scale and add up to the score of the page (negative scores
contribute nothing).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anchorfold.core.fold import CompressedPage
from anchorfold.core.scoring import maxsim
from anchorfold.page import PatchGrid


@dataclass(frozen=True)
class Evidence:
    """Contributions to the score of a page.

    `scores (W,)` are the contributions of the query's `words`, `maps (W, N)` those of each word and patch; `score` is
    the MaxSim score, including special tokens of the query.
    """

    words: tuple[str, ...]
    scores: Tensor
    maps: Tensor
    score: float

    @property
    def query_map(self) -> Tensor:
        """`(N,)` the contributions of each patch, summed over all words."""
        return self.maps.sum(0)


def compute_evidence(
    query: Tensor, labels: Sequence[int | None], words: Sequence[str], page: CompressedPage
) -> Evidence:
    """Compute the contributions to the score of a page.

    Args:
        query: `(T, d)` query vectors.
        labels: index of the word of each query vector; None for special tokens, which have no map.
        words: words of the query.
        page: the page, compressed or full.
    """
    if len(labels) != len(query):
        raise ValueError(f"labels must have one entry per query vector, got {len(labels)} for {len(query)} vectors.")
    maps, scores = torch.zeros(len(words), len(page.groups)), torch.zeros(len(words))
    if len(query) and len(page.vectors):
        best_scores, best_vectors = (query.float() @ page.vectors.float().T).max(1)
        for score, vector, label in zip(best_scores, best_vectors, labels, strict=True):
            if label is not None:
                scores[label] += score
                members = page.groups == vector
                maps[label, members] += score.clamp(min=0) * page.weights[members].float()
    total = float(maxsim([query], [page])[0, 0]) if len(page.vectors) else 0.0
    return Evidence(tuple(words), scores, maps, total)


def rasterize(values: Tensor, grid: PatchGrid, columns: int, rows: int) -> Tensor:
    """Draw patch values `(N,)` as rectangles on a raster `(rows, columns)` of the page.

    Values of overlapping patches (tiles and a thumbnail) add up; that of a large patch is divided by its relative area.
    """
    raster = torch.zeros(rows, columns)
    boxes = grid.boxes()
    area = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    smallest = area.min() if len(area) else torch.tensor(1.0)
    edges = (boxes * torch.tensor([columns, rows, columns, rows])).round().long()
    for value, (left, top, right, bottom), size in zip(values.tolist(), edges.tolist(), area.tolist(), strict=True):
        if value > 0:
            raster[top : max(bottom, top + 1), left : max(right, left + 1)] += value * float(smallest) / size
    return raster
