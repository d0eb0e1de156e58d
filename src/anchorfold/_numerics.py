"""Two rules that every tensor function here keeps: half precision is computed in float32, bad numbers are refused."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """The same values in the precision that we compute in: float64 stays, every other type becomes float32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def require_finite(name: str, x: Tensor) -> None:
    """Raise if `x` holds NaN or an infinity."""
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"{name} holds NaN or infinite values: check the model's outputs before compressing them.")


def unit(x: Tensor) -> Tensor:
    """L2-normalised rows; a zero row stays zero."""
    return F.normalize(x, dim=-1, eps=1e-12)
