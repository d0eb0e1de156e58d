"""k-means on the device where the vectors are: the same clusters on a CPU and a GPU for one seed, but for ties."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from anchorfold._numerics import widen

ITERATIONS, TOLERANCE = 100, 1e-4  # at most; the share of the vectors' variance below which centres stand still
MOST_AT_ONCE = 4096  # vectors whose distances to each other are held, 64 MB


@torch.no_grad()
def kmeans(vectors: Tensor, m: int, seed: int = 0, weights: Tensor | None = None) -> Tensor:
    """Lloyd's algorithm from a greedy k-means++ start, by scikit-learn's rules.

    Args:
        vectors: `(N, d)`.
        m: clusters, at most N.
        seed: of the start; drawn on the CPU, so that every device starts alike.
        weights: `(N,)` how much each vector counts, at least 0; all the same if None.

    Returns:
        `(N,)` cluster numbers from 0 to m - 1, every one of them in use.

    >>> pair = torch.tensor([[0.0, 1.0], [0.1, 1.0], [9.0, 0.0]])
    >>> groups = kmeans(pair, 2)
    >>> bool(groups[0] == groups[1]), bool(groups[0] == groups[2])
    (True, False)
    """
    x = widen(vectors)
    x = x - x.mean(0)  # shorter vectors lose fewer digits in the products below
    mass = None if weights is None else weights.to(x)
    centres = x[start(x, m, seed, mass)]
    still = TOLERANCE * x.var(0, correction=0).mean()
    labels = nearest(x, centres)
    for _ in range(ITERATIONS):
        moved = means(x, labels, centres, mass)
        shift, centres = (moved - centres).square().sum(), moved
        before, labels = labels, nearest(x, centres)
        if bool((shift <= still) | (labels == before).all()):
            break
    return fill_empty(x, labels, m)


def means(x: Tensor, labels: Tensor, centres: Tensor, mass: Tensor | None) -> Tensor:
    """`(m, d)` means of the clusters, weighed by `mass (N,)`; an empty cluster keeps its centre."""
    m = len(centres)
    mass = torch.ones_like(x[:, 0]) if mass is None else mass
    if x.device.type == "cpu":
        total = mass.new_zeros(m).index_add_(0, labels, mass)[:, None]
        sums = torch.zeros_like(centres).index_add_(0, labels, x * mass[:, None])
    else:
        # A product, not a scattered sum: its result does not depend on the order in which a GPU's threads finish.
        member = x.new_zeros(len(x), m).scatter_(1, labels[:, None], mass[:, None])
        total, sums = member.sum(0)[:, None], member.T @ x
    return torch.where(total > 0, sums / total.clamp(min=torch.finfo(x.dtype).tiny), centres)


def nearest(x: Tensor, centres: Tensor) -> Tensor:
    """`(N,)` the number of the centre `(m, d)` that is nearest to each vector `(N, d)`; the first one if equal."""
    return torch.addmm(centres.square().sum(1), x, centres.T, alpha=-2).argmin(1)


def start(x: Tensor, m: int, seed: int, mass: Tensor | None = None) -> Tensor:
    """`(m,)` positions of the first centres: each the best of a few draws, far vectors being likelier."""
    tries = 2 + int(math.log(m))
    draws = torch.rand(m, tries, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(x)
    square = x.square().sum(1)
    # One large product costs less than hundreds of small ones, even if only a third of it is asked for.
    table = distances(x, x, square, square) if 3 * tries * m >= len(x) and len(x) <= MOST_AT_ONCE else None
    share = torch.ones_like(x[:, 0]) if mass is None else mass
    gap: Tensor | None = None
    chosen: list[Tensor] = []
    for i in range(m):
        candidates = pick(share, draws[i] if i else draws[i, :1])
        gaps = distances(x[candidates], x, square[candidates], square) if table is None else table[candidates]
        gaps = gaps if gap is None else torch.minimum(gap, gaps)
        shares = gaps if mass is None else gaps * mass
        best = int(shares.sum(1).argmin())
        gap, share = gaps[best], shares[best]
        chosen.append(candidates[best])
    return torch.stack(chosen)


def pick(share: Tensor, draws: Tensor) -> Tensor:
    """Positions drawn in proportion to `share (N,)`, one for each number from 0 to 1 of `draws`."""
    edges = share.cumsum(0)
    return torch.searchsorted(edges, draws * edges[-1], right=True).clamp_(max=len(share) - 1)


def distances(a: Tensor, b: Tensor, a_square: Tensor, b_square: Tensor) -> Tensor:
    """`(k, n)` squared distances of vectors `(k, d)` and `(n, d)`, given their squared lengths `(k,)` and `(n,)`."""
    return torch.addmm(b_square, a, b.T, alpha=-2).add_(a_square[:, None]).clamp_(min=0)


def fill_empty(x: Tensor, labels: Tensor, m: int) -> Tensor:
    """Labels `(N,)` with all of 0 to m - 1 in use: each empty cluster takes the vector farthest from its own mean.

    Fewer distinct vectors than clusters leave some empty, whatever the algorithm.
    """
    counts = torch.bincount(labels, minlength=m)
    if bool(counts.all()):
        return labels
    means = x.new_zeros(m, x.shape[1]).index_add_(0, labels, x) / counts.clamp(min=1)[:, None]
    farthest = iter((x - means[labels]).square().sum(1).argsort(descending=True, stable=True).tolist())
    numbers, sizes = labels.tolist(), counts.tolist()
    for empty in (number for number in range(m) if not counts[number]):
        token = next(t for t in farthest if sizes[numbers[t]] > 1)
        sizes[numbers[token]] -= 1
        numbers[token], sizes[empty] = empty, 1
    return torch.tensor(numbers, device=labels.device)
