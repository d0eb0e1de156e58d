"""k-means and group means.

For one seed, clusters are the same on a CPU and a GPU except for ties. Shapes: N vectors of dimension d, m clusters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anchorfold.core.fold import CompressedPage, Projection, combine, group_weights
from anchorfold.core.numerics import unit, upcast

ITERATIONS, TOLERANCE = 100, 1e-4  # maximum; share of the vectors' variance below which centres are converged
MAX_SEQUENTIAL, ROUNDS = 512, 128  # centres that are initialised one by one; blocks for more
MAX_TABLE = 4096  # vectors up to which all pairwise distances are stored (64 MB)


def average_groups(embeddings: Tensor, groups: Tensor, m: int, normalize: bool = True) -> CompressedPage:
    """Average the vectors of each group.

    Args:
        embeddings: `(N, d_r)` the full index.
        groups: `(N,)` group numbers from 0 to m - 1, all in use.
        m: number of groups.
        normalize: whether the means are L2-normalised.
    """
    return merge_groups(embeddings, embeddings, groups, m, torch.ones_like(embeddings[:, 0]), lambda z: z, normalize)


def merge_groups(
    hidden: Tensor, embeddings: Tensor, groups: Tensor, m: int, alpha: Tensor, project: Projection,
    normalize: bool = True,
) -> CompressedPage:  # fmt: skip
    """Merge each group into the projection of the mean of its hidden states `(N, d)`, weighted by `alpha (N,)`.

    The anchor of a group is the member most similar to the mean (the first if equal); vectors are in anchor order.
    """
    groups = groups.to(embeddings.device)
    weights = group_weights(alpha, groups, m)
    means = project(combine(hidden, weights, groups, m))
    vectors = unit(means)
    similarity = (embeddings * vectors[groups]).sum(1)
    best = torch.full((m,), -torch.inf, device=groups.device, dtype=similarity.dtype)
    best = best.scatter_reduce(0, groups, similarity, "amax")
    number = torch.arange(len(groups), device=groups.device)
    candidates = torch.where(similarity >= best[groups] - 1e-6, number, len(groups))
    anchors = torch.full((m,), len(groups), device=groups.device).scatter_reduce(0, groups, candidates, "amin")
    order = anchors.argsort()
    rank = torch.empty_like(order)
    rank[order] = torch.arange(m, device=order.device)
    return CompressedPage((vectors if normalize else means)[order], anchors[order], rank[groups], weights)


@torch.no_grad()
def kmeans(vectors: Tensor, m: int, seed: int = 0, weights: Tensor | None = None) -> Tensor:
    """Run Lloyd's algorithm from a greedy k-means++ initialisation, with scikit-learn's rules.

    Args:
        vectors: `(N, d)`.
        m: number of clusters, at most N.
        seed: seed of the initialisation, drawn on the CPU so that it is the same on all devices.
        weights: `(N,)` non-negative weight of each vector; uniform if None.

    Returns:
        `(N,)` cluster numbers from 0 to m - 1, all in use.

    Examples:
        >>> groups = kmeans(torch.tensor([[0.0, 1.0], [0.1, 1.0], [9.0, 0.0]]), 2)
        >>> bool(groups[0] == groups[1]), bool(groups[0] == groups[2])
        (True, False)
    """
    x = upcast(vectors)
    x = x - x.mean(0)  # shorter vectors lose fewer digits in the products below
    mass = None if weights is None else weights.to(x)
    centres = x[initial_centres(x, m, seed, mass)]
    converged = TOLERANCE * x.var(0, correction=0).mean()
    labels = nearest_centre(x, centres)
    for _ in range(ITERATIONS):
        updated = cluster_means(x, labels, centres, mass)
        shift, centres = (updated - centres).square().sum(), updated
        before, labels = labels, nearest_centre(x, centres)
        if bool((shift <= converged) | (labels == before).all()):
            break
    return fill_empty(x, labels, m)


def cluster_means(x: Tensor, labels: Tensor, centres: Tensor, mass: Tensor | None) -> Tensor:
    """Return the means `(m, d)` of the clusters, weighted by `mass (N,)`; empty clusters keep their centre."""
    m = len(centres)
    mass = torch.ones_like(x[:, 0]) if mass is None else mass
    if x.device.type == "cpu":
        total = mass.new_zeros(m).index_add_(0, labels, mass)[:, None]
        sums = torch.zeros_like(centres).index_add_(0, labels, x * mass[:, None])
    else:
        # A product instead of a scattered sum, whose result depends on the order in which GPU threads finish.
        member = x.new_zeros(len(x), m).scatter_(1, labels[:, None], mass[:, None])
        total, sums = member.sum(0)[:, None], member.T @ x
    return torch.where(total > 0, sums / total.clamp(min=torch.finfo(x.dtype).tiny), centres)


def nearest_centre(x: Tensor, centres: Tensor) -> Tensor:
    """Return the number of the nearest centre `(m, d)` of each vector `(N, d)`; the first if equal."""
    return torch.addmm(centres.square().sum(1), x, centres.T, alpha=-2).argmin(1)


def initial_centres(x: Tensor, m: int, seed: int, mass: Tensor | None = None) -> Tensor:
    """Return positions `(m,)` of greedy k-means++ centres: each is the best of a few draws.

    More than `MAX_SEQUENTIAL` centres are chosen in `ROUNDS` blocks, whose centres do not depend on each other. No step
    waits for the device.
    """
    tries, block = 2 + int(math.log(m)), math.ceil(m / ROUNDS) if m > MAX_SEQUENTIAL else 1
    draws = torch.rand(m, tries, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(x)
    square = x.square().sum(1)
    # One large product is faster than hundreds of small ones, even if only a third of it is used.
    table = squared_distances(x, x, square, square) if 3 * tries * m >= len(x) and len(x) <= MAX_TABLE else None

    def distances_to(rows: Tensor) -> Tensor:
        return table[rows] if table is not None else squared_distances(x[rows], x, square[rows], square)

    share = torch.ones_like(x[:, 0]) if mass is None else mass
    positions = [draw_positions(share, draws[0, :1])]
    nearest = distances_to(positions[0])[0]
    for start in range(1, m, block):
        share = nearest if mass is None else nearest * mass
        candidates = draw_positions(share, draws[start : start + block])
        distances = torch.minimum(nearest, distances_to(candidates.flatten())).view(*candidates.shape, len(x))
        best = (distances if mass is None else distances * mass).sum(2).argmin(1)
        number = torch.arange(len(best), device=x.device)
        positions.append(candidates[number, best])
        nearest = distances[number, best].amin(0)
    return torch.cat(positions)


def draw_positions(share: Tensor, draws: Tensor) -> Tensor:
    """Return a position for each uniform number in `draws`, with probability proportional to `share (N,)`."""
    edges = share.cumsum(0)
    return torch.searchsorted(edges, draws * edges[-1], right=True).clamp_(max=len(share) - 1)


def squared_distances(a: Tensor, b: Tensor, a_square: Tensor, b_square: Tensor) -> Tensor:
    """Return squared distances `(k, n)` of vectors `(k, d)` and `(n, d)`, given their squared norms."""
    return torch.addmm(b_square, a, b.T, alpha=-2).add_(a_square[:, None]).clamp_(min=0)


def fill_empty(x: Tensor, labels: Tensor, m: int) -> Tensor:
    """Move the vectors that are farthest from their means into empty clusters, so that all m labels are in use.

    Clusters stay empty if there are fewer distinct vectors than clusters.
    """
    counts = torch.bincount(labels, minlength=m)
    if bool(counts.all()):
        return labels
    means = x.new_zeros(m, x.shape[1]).index_add_(0, labels, x) / counts.clamp(min=1)[:, None]
    farthest = iter((x - means[labels]).square().sum(1).argsort(descending=True, stable=True).tolist())
    numbers, sizes = labels.tolist(), counts.tolist()
    for empty in [number for number, size in enumerate(sizes) if not size]:
        token = next(t for t in farthest if sizes[numbers[t]] > 1)
        sizes[numbers[token]] -= 1
        numbers[token], sizes[empty] = empty, 1
    return torch.tensor(numbers, device=labels.device)
