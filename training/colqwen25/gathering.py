"""Pages of all processes, so that each query meets the negatives of the whole batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor


def gather_pages(vectors: Tensor, mask: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Every process's pages, in order of processes, and where this one's begin.

    Gradients of other processes' queries come back to the pages of this one and are summed there.
    DistributedDataParallel then averages over processes: the gradients of one process with the whole batch.

    Args:
        vectors: `(B, P, d)`; P may differ between processes, B may not.
        mask: `(B, P)` which vectors there are.
        keys: `(B,)` what identifies each page.
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
    """torch's own (2.13) gives other gradients on gloo: it is left alone, and this one is tested."""

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
    """Without gradients."""
    parts = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, values.contiguous())
    return torch.cat(parts)
