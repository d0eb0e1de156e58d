"""MaxSim: late-interaction scores of queries and pages of any lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from anchorfold.core.numerics import require_finite, upcast

CHUNK_VECTORS = 16384


@runtime_checkable
class HasVectors(Protocol):
    """An object with `vectors (m, d)`, such as a compressed page."""

    @property
    def vectors(self) -> Tensor:
        """`(m, d)`."""
        ...


Vectors = Tensor | HasVectors


def as_vectors(x: Vectors) -> Tensor:
    """Return the vectors `(n, d)` of a page or query."""
    vectors = x if isinstance(x, Tensor) else x.vectors
    if vectors.ndim != 2:
        raise ValueError(f"a page or query must have the shape (vectors, dim), got {tuple(vectors.shape)}.")
    return upcast(vectors)


def maxsim(queries: Sequence[Vectors] | Tensor, pages: Sequence[Vectors] | Tensor) -> Tensor:
    """Score all pages for all queries: the largest inner product of each query vector, summed over the query.

    Args:
        queries: one `(q_i, d)` tensor (or object with `.vectors`) per query.
        pages: one `(m_i, d)` tensor (or object with `.vectors`) per page. Vectors need not be normalised.

    Returns:
        Scores `(queries, pages)`: minus infinity for a page without vectors, 0 for a query without vectors.

    Examples:
        >>> query, page = torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
        >>> maxsim([query], [page, page[:1]])
        tensor([[1.8000, 1.0000]])
    """
    query_list = [as_vectors(q) for q in queries]
    page_list = [as_vectors(p) for p in pages]
    if not query_list or not page_list:
        return torch.zeros(len(query_list), len(page_list))
    dims = {x.shape[1] for x in query_list + page_list}
    if len(dims) > 1:
        raise ValueError(f"queries and pages have different dimensions: {sorted(dims)}.")
    device = page_list[0].device
    flat = torch.cat([q.to(device) for q in query_list])
    require_finite("queries", flat)
    owner = torch.repeat_interleave(torch.tensor([len(q) for q in query_list])).to(device)
    columns = []
    for start, stop in chunks([len(p) for p in page_list]):
        lengths = torch.tensor([len(p) for p in page_list[start:stop]], device=device)
        chunk = torch.cat([p.to(device, flat.dtype) for p in page_list[start:stop]])
        require_finite("pages", chunk)
        best = torch.segment_reduce(chunk @ flat.T, "max", lengths=lengths, axis=0)
        columns.append(best.new_zeros(len(lengths), len(query_list)).index_add_(1, owner, best))
    return torch.cat(columns).T


def retention(full: Tensor, compressed: Tensor) -> Tensor:
    """Return score retention in percent for each query-page pair.

    Args:
        full: MaxSim scores of the full index, of any shape.
        compressed: scores of the same pairs after compression.

    Returns:
        The same shape; NaN where the full score is not positive. The retention of a query with several relevant pages
        is the mean over its pairs, because the paper defines it for a pair.

    Examples:
        >>> retention(torch.tensor([2.0, 0.0]), torch.tensor([1.5, 0.0]))
        tensor([75., nan])
    """
    return torch.where(full > 0, 100 * compressed / full, torch.nan)


def score_retention(query: Vectors, full: Vectors, compressed: Vectors) -> float:
    """Return the `retention` of one pair, computed from its vectors.

    Examples:
        >>> query, page = torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
        >>> round(score_retention(query, page, page[:1]), 1)
        55.6
    """
    before, after = maxsim([query], [full, compressed])[0]
    if not float(before) > 0:
        raise ValueError("score retention is undefined: the full page's score for this query is not positive.")
    return float(retention(before, after))


def chunks(lengths: Sequence[int], limit: int = CHUNK_VECTORS) -> list[tuple[int, int]]:
    """Split pages into ranges `[start, stop)` of about `limit` vectors each."""
    ranges, start, total = [], 0, 0
    for i, length in enumerate(lengths):
        total += length
        if total >= limit or i == len(lengths) - 1:
            ranges.append((start, i + 1))
            start, total = i + 1, 0
    return ranges
