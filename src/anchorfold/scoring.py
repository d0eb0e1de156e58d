"""MaxSim: late-interaction scores of ragged queries against ragged pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from anchorfold._numerics import require_finite, widen

CHUNK_VECTORS = 16384


@runtime_checkable
class HasVectors(Protocol):
    """Anything with `vectors (m, d)`: an encoded or a folded page."""

    @property
    def vectors(self) -> Tensor:
        """`(m, d)`."""
        ...


Vectors = Tensor | HasVectors


def as_vectors(x: Vectors) -> Tensor:
    """The `(n, d)` vectors of a page or query, whatever holds them."""
    vectors = x if isinstance(x, Tensor) else x.vectors
    if vectors.ndim != 2:
        raise ValueError(f"a page or query must have the shape (vectors, dim), got {tuple(vectors.shape)}.")
    return widen(vectors)


def maxsim(queries: Sequence[Vectors] | Tensor, pages: Sequence[Vectors] | Tensor) -> Tensor:
    """Scores `(queries, pages)`: for each query vector its best page vector, summed over the query.

    Args:
        queries: one `(q_i, d)` tensor (or an object with `.vectors`) a query; lengths may differ.
        pages: one `(m_i, d)` tensor (or an encoded page) a page; lengths may differ.

    A page without vectors cannot match: its score is minus infinity. A query without vectors scores 0.

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


def retention(full: Tensor, small: Tensor) -> Tensor:
    """Score retention in percent, pair by pair: what compression leaves of MaxSim scores.

    Args:
        full: scores of query-page pairs in the full index, of any shape.
        small: their scores after compression.

    Returns:
        The same shape; NaN where the full page scores nothing or less, of which no share can be kept. The retention of
        a query with several relevant pages is the mean over them: the paper defines it for a pair.

    >>> retention(torch.tensor([2.0, 0.0]), torch.tensor([1.5, 0.0]))
    tensor([75., nan])
    """
    return torch.where(full > 0, 100 * small / full, torch.nan)


def score_retention(query: Vectors, full: Vectors, small: Vectors) -> float:
    """`retention` of one pair, from its vectors.

    >>> query, page = torch.eye(2), torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    >>> round(score_retention(query, page, page[:1]), 1)
    55.6
    """
    before, after = maxsim([query], [full, small])[0]
    if not float(before) > 0:
        raise ValueError("the full page does not score above 0 for this query: its retention is not defined.")
    return float(retention(before, after))


def chunks(lengths: Sequence[int], limit: int = CHUNK_VECTORS) -> list[tuple[int, int]]:
    """Runs of pages `[start, stop)` that hold about `limit` vectors each."""
    runs, start, total = [], 0, 0
    for i, length in enumerate(lengths):
        total += length
        if total >= limit or i == len(lengths) - 1:
            runs.append((start, i + 1))
            start, total = i + 1, 0
    return runs
