"""Folding: assign every token to its most similar anchor and merge each group into one vector.

Shapes: N tokens, m vectors after compression, d the hidden and d_r the retrieval dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from anchorfold.core.numerics import require_finite, unit, upcast

Projection = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class CompressedPage:
    """A page of N tokens as m vectors, in page order of their anchors.

    Attributes:
        vectors: `(m, d_r)`; L2-normalised, except those of the `-raw` compressors.
        anchors: `(m,)` token position of each vector.
        groups: `(N,)` vector number of each token; -1 if the token was dropped.
        weights: `(N,)` share of each token in its vector; the shares of a group sum to 1.

    Examples:
        >>> page = fold(torch.eye(3), torch.tensor([1.0, 2.0, 3.0]), m=2)
        >>> len(page), page.anchors
        (2, tensor([1, 2]))
    """

    vectors: Tensor
    anchors: Tensor
    groups: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.vectors)


def top_tokens(alpha: Tensor, m: int) -> Tensor:
    """Return positions `(m,)` of the m largest scores, in page order; ties go to the earlier token.

    Examples:
        >>> top_tokens(torch.tensor([1.0, 3.0, 2.0, 3.0]), 2)
        tensor([1, 3])
    """
    return torch.sort(alpha, descending=True, stable=True).indices[:m].sort().values


def spread_tokens(alpha: Tensor, embeddings: Tensor, m: int) -> Tensor:
    """Select m central tokens greedily, with a penalty for similarity to tokens selected before.

    The score of a token is `alpha (1 - s)^2`, where s is its largest cosine similarity (at least 0) to a selected
    token.

    Args:
        alpha: `(N,)` non-negative centrality.
        embeddings: `(N, d_r)` L2-normalised.
        m: number of tokens, at most N.

    Returns:
        Positions `(m,)` in page order.
    """
    similarity = torch.zeros_like(alpha)
    available = torch.ones_like(alpha, dtype=torch.bool)
    selected = torch.empty(m, dtype=torch.long, device=alpha.device)
    for i in range(m):
        selected[i] = (alpha * (1 - similarity).square()).masked_fill(~available, -1).argmax()
        available[selected[i]] = False
        similarity = torch.maximum(similarity, (embeddings @ embeddings[selected[i]]).clamp(0, 1).to(alpha.dtype))
    return selected.sort().values


def nearest_anchor(embeddings: Tensor, anchors: Tensor) -> Tensor:
    """Return the number of the most cosine-similar anchor of each token `(N,)`; ties go to the earlier anchor.

    Args:
        embeddings: `(N, d_r)` L2-normalised.
        anchors: `(m,)` positions in page order. An anchor is assigned to itself.
    """
    similarity = embeddings @ embeddings[anchors].T
    # Equal anchors may differ by a rounding error between two columns of one product: that is still a tie.
    tolerance = 1e-6 if similarity.dtype == torch.float32 else 1e-12
    best = similarity.amax(1, keepdim=True)
    number = torch.arange(len(anchors), device=embeddings.device)
    groups = torch.where(similarity >= best - tolerance, number, len(anchors)).amin(1)
    groups[anchors] = number
    return groups


def group_weights(alpha: Tensor, groups: Tensor, m: int) -> Tensor:
    """Return each token's share `(N,)` of its group's centrality; uniform in groups whose centrality is zero."""
    total = alpha.new_zeros(m).index_add_(0, groups, alpha)
    size = alpha.new_zeros(m).index_add_(0, groups, torch.ones_like(alpha))
    share = alpha / total[groups].clamp(min=torch.finfo(alpha.dtype).tiny)
    return torch.where(total[groups] > 0, share, 1 / size[groups])


def combine(hidden: Tensor, weights: Tensor, groups: Tensor, m: int) -> Tensor:
    """Return the weighted means `(m, d)` of the groups' hidden states `(N, d)`."""
    return hidden.new_zeros(m, hidden.shape[1]).index_add_(0, groups, hidden * weights[:, None])


def fold(hidden: Tensor, alpha: Tensor, m: int, project: Projection | None = None) -> CompressedPage:
    """Compress one page: select the m most central tokens as anchors and fold all tokens onto them.

    Args:
        hidden: `(N, d)` final hidden states before the retrieval projection.
        alpha: `(N,)` non-negative centrality.
        m: number of vectors, at most N.
        project: retrieval projection `(k, d) -> (k, d_r)`; None if hidden states are in retrieval space.

    Returns:
        The page as m vectors. With `m = N` they equal the full index exactly.

    Examples:
        >>> hidden = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
        >>> page = fold(hidden, alpha=torch.tensor([1.0, 3.0, 1.0]), m=2)
        >>> page.vectors, page.anchors, page.groups, page.weights
        (tensor([[1., 0.],
                [0., 1.]]), tensor([0, 1]), tensor([0, 1, 1]), tensor([1.0000, 0.7500, 0.2500]))
    """
    n = len(hidden)
    if hidden.ndim != 2 or alpha.shape != (n,):
        shapes = f"{tuple(hidden.shape)} and {tuple(alpha.shape)}"
        raise ValueError(f"fold requires hidden (tokens, dim) and alpha (tokens,), got {shapes}.")
    require_finite("hidden", hidden)
    require_finite("alpha", alpha)
    if not min(n, 1) <= m <= n:
        raise ValueError(f"cannot fold a page of {n} tokens into {m} vectors.")
    if bool((alpha < 0).any()):
        raise ValueError("alpha contains negative values: centrality must be at least 0.")
    hidden, alpha = upcast(hidden), upcast(alpha).to(hidden.device)
    project = project or (lambda z: z)
    if n == 0:
        empty = torch.zeros(0, dtype=torch.long, device=hidden.device)
        return CompressedPage(hidden[:, : project(hidden.new_zeros(1, hidden.shape[1])).shape[1]], empty, empty, alpha)
    embeddings = unit(project(hidden))
    if m == n:
        positions = torch.arange(n, device=hidden.device)
        return CompressedPage(embeddings, positions, positions.clone(), torch.ones_like(alpha))
    return fold_onto(hidden, embeddings, top_tokens(alpha, m), alpha, project)


def fold_onto(
    hidden: Tensor, embeddings: Tensor, anchors: Tensor, alpha: Tensor, project: Projection
) -> CompressedPage:
    """Fold a page onto given anchors `(m,)` with weights `alpha (N,)`; `embeddings (N, d_r)` are its full index."""
    groups = nearest_anchor(embeddings, anchors)
    weights = group_weights(alpha, groups, len(anchors))
    vectors = unit(project(combine(hidden, weights, groups, len(anchors))))
    return CompressedPage(vectors, anchors, groups, weights)
