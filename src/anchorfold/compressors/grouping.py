"""What merging compressors share: mean vectors of given groups, in page order."""

from __future__ import annotations

import torch
from torch import Tensor

from anchorfold._numerics import unit
from anchorfold.fold import Folded, Projection, combine, group_weights


def average_groups(embeddings: Tensor, groups: Tensor, m: int) -> Folded:
    """Arithmetic mean of each group's vectors, L2-normalised.

    Args:
        embeddings: `(N, d_r)` the full index.
        groups: `(N,)` group numbers from 0 to m - 1, every one of them used.
        m: the number of groups.
    """
    return merge_groups(embeddings, embeddings, groups, m, torch.ones_like(embeddings[:, 0]), lambda z: z)


def merge_groups(
    hidden: Tensor, embeddings: Tensor, groups: Tensor, m: int, alpha: Tensor, project: Projection
) -> Folded:
    """Mean of each group's hidden states `(N, d)`, weighed by `alpha (N,)`, projected and L2-normalised.

    A group's anchor is its member nearest to the mean (the earlier one if equal); vectors follow their anchors.
    """
    groups = groups.to(embeddings.device)
    weights = group_weights(alpha, groups, m)
    vectors = unit(project(combine(hidden, weights, groups, m)))
    closeness = (embeddings * vectors[groups]).sum(1)
    best = torch.full((m,), -torch.inf, device=groups.device, dtype=closeness.dtype)
    best = best.scatter_reduce(0, groups, closeness, "amax")
    number = torch.arange(len(groups), device=groups.device)
    candidates = torch.where(closeness >= best[groups] - 1e-6, number, len(groups))
    anchors = torch.full((m,), len(groups), device=groups.device).scatter_reduce(0, groups, candidates, "amin")
    order = anchors.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(m, device=order.device)
    return Folded(vectors[order], anchors[order], rank[groups], weights)
