"""Gather pages from all processes, so that each query is contrasted with the whole batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


def gather_pages(vectors: Tensor, mask: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Gather the pages of all processes in order of rank, and return the offset of this process.

    Gradients from queries of other processes are summed at the pages of this process. DistributedDataParallel then
    averages over processes, which equals the gradients of one process with the whole batch.

    Args:
        vectors: `(B, P, d)`; P may differ between processes, B may not.
        mask: `(B, P)` valid vectors.
        keys: `(B,)` identifiers of the pages.
    """
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return vectors, mask, keys, 0
    length = torch.tensor(vectors.shape[1], device=vectors.device)
    dist.all_reduce(length, dist.ReduceOp.MAX)
    missing = int(length) - vectors.shape[1]
    vectors, mask = F.pad(vectors, (0, 0, 0, missing)), F.pad(mask, (0, missing))
    gathered: Tensor = _GatherWithGradients.apply(vectors)
    return gathered, _gather(mask), _gather(keys), dist.get_rank() * len(keys)


class _GatherWithGradients(torch.autograd.Function):
    """All-gather with gradients; the version of torch 2.13 computes different gradients with gloo."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.rows = len(values)
        return _gather(values)

    @staticmethod
    def backward(ctx: Any, gradients: Tensor) -> Tensor:
        gradients = gradients.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradients)
        first = dist.get_rank() * ctx.rows
        return gradients[first : first + ctx.rows]


def _gather(values: Tensor) -> Tensor:
    """All-gather without gradients."""
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values.contiguous())
    return torch.cat(parts)
