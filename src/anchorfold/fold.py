"""Fold: every token joins its most similar anchor; each group becomes one vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from anchorfold._numerics import require_finite, unit, widen

Projection = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Folded:
    """A compressed page of N tokens.

    `vectors (m, d_r)` L2-normalised, in page order of their anchors; `anchors (m,)` the token each vector
    stands at; `groups (N,)` the vector each token went into, -1 if it was dropped; `weights (N,)` the
    token's share in its vector (a group's shares sum to 1).

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
    """Positions `(m,)` of the m largest scores, in page order; ties go to the earlier token.

    >>> top_tokens(torch.tensor([1.0, 3.0, 2.0, 3.0]), 2)
    tensor([1, 3])
    """
    order = torch.sort(alpha, descending=True, stable=True).indices
    return order[:m].sort().values


def spread_tokens(alpha: Tensor, embeddings: Tensor, m: int) -> Tensor:
    """Positions `(m,)` in page order, chosen one by one: central tokens that repeat no earlier one.

    A token counts `alpha (1 - s)^2`, s its largest cosine similarity to a token chosen before (0 at least).

    Args:
        alpha: `(N,)` centrality, at least 0.
        embeddings: `(N, d_r)` L2-normalised.
        m: tokens to choose, at most N.
    """
    seen = torch.zeros_like(alpha)
    free = torch.ones_like(alpha, dtype=torch.bool)
    chosen = torch.empty(m, dtype=torch.long, device=alpha.device)
    for i in range(m):
        chosen[i] = (alpha * (1 - seen).square()).masked_fill(~free, -1).argmax()
        free[chosen[i]] = False
        seen = torch.maximum(seen, (embeddings @ embeddings[chosen[i]]).clamp(0, 1).to(alpha.dtype))
    return chosen.sort().values


def nearest_anchor(embeddings: Tensor, anchors: Tensor) -> Tensor:
    """`(N,)` for each token the number of its most cosine-similar anchor; ties go to the earlier anchor.

    Args:
        embeddings: `(N, d_r)` L2-normalised.
        anchors: `(m,)` positions, in page order. An anchor belongs to itself.
    """
    similarity = embeddings @ embeddings[anchors].T
    # Equal anchors may differ by a rounding error between two columns of one product: that is still a tie.
    slack = 1e-6 if similarity.dtype == torch.float32 else 1e-12
    best = similarity.amax(1, keepdim=True)
    number = torch.arange(len(anchors), device=embeddings.device)
    groups = torch.where(similarity >= best - slack, number, len(anchors)).amin(1)
    groups[anchors] = number
    return groups


def group_weights(alpha: Tensor, groups: Tensor, m: int) -> Tensor:
    """`(N,)` each token's share of its group's centrality; a group without any centrality is shared evenly."""
    total = alpha.new_zeros(m).index_add_(0, groups, alpha)
    size = alpha.new_zeros(m).index_add_(0, groups, torch.ones_like(alpha))
    return torch.where(
        total[groups] > 0, alpha / total[groups].clamp(min=torch.finfo(alpha.dtype).tiny), 1 / size[groups]
    )


def combine(hidden: Tensor, weights: Tensor, groups: Tensor, m: int) -> Tensor:
    """`(m, d)` weighted means of the groups' hidden states `(N, d)`."""
    return hidden.new_zeros(m, hidden.shape[1]).index_add_(0, groups, hidden * weights[:, None])


def fold(hidden: Tensor, alpha: Tensor, m: int, project: Projection | None = None) -> Folded:
    """Focus-then-fold one page.

    Args:
        hidden: `(N, d)` final hidden states before the retrieval projection.
        alpha: `(N,)` centrality, at least 0.
        m: vectors to keep, at most N.
        project: the retrieval projection `(k, d) -> (k, d_r)`; None if hidden states are in retrieval space.

    Returns:
        The page as m vectors. With `m = N` they are the full index exactly.

    >>> hidden = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 1.0]])
    >>> page = fold(hidden, alpha=torch.tensor([1.0, 3.0, 1.0]), m=2)
    >>> page.vectors, page.anchors, page.groups, page.weights
    (tensor([[1., 0.],
            [0., 1.]]), tensor([0, 1]), tensor([0, 1, 1]), tensor([1.0000, 0.7500, 0.2500]))
    """
    if hidden.ndim != 2 or alpha.shape != hidden.shape[:1]:
        raise ValueError(
            f"fold needs hidden (tokens, dim) and alpha (tokens,), got {tuple(hidden.shape)} and {tuple(alpha.shape)}."
        )
    require_finite("hidden", hidden)
    require_finite("alpha", alpha)
    n = len(hidden)
    if not min(n, 1) <= m <= n:
        raise ValueError(f"a page of {n} tokens cannot be folded into {m} vectors.")
    if bool((alpha < 0).any()):
        raise ValueError("alpha holds negative values: centrality is a share of attention and at least 0.")
    hidden, alpha = widen(hidden), widen(alpha).to(hidden.device)
    project = project or (lambda z: z)
    if n == 0:
        empty = torch.zeros(0, dtype=torch.long, device=hidden.device)
        return Folded(hidden[:, : project(hidden.new_zeros(1, hidden.shape[1])).shape[1]], empty, empty, alpha)
    embeddings = unit(project(hidden))
    if m == n:
        every = torch.arange(n, device=hidden.device)
        return Folded(embeddings, every, every.clone(), torch.ones_like(alpha))
    return fold_onto(hidden, embeddings, top_tokens(alpha, m), alpha, project)


def fold_onto(hidden: Tensor, embeddings: Tensor, anchors: Tensor, alpha: Tensor, project: Projection) -> Folded:
    """Fold a page onto given anchors `(m,)` with weights `alpha (N,)`; `embeddings (N, d_r)` are its full index."""
    groups = nearest_anchor(embeddings, anchors)
    weights = group_weights(alpha, groups, len(anchors))
    vectors = unit(project(combine(hidden, weights, groups, len(anchors))))
    return Folded(vectors, anchors, groups, weights)
