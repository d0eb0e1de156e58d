"""Precision and validity of tensors: half precision is computed in float32, non-finite values are rejected."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfold.errors import InvalidArgumentError


def upcast(x: Tensor) -> Tensor:
    """Return `x` in the precision used for computation: float64 is kept, every other type becomes float32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def require_finite(name: str, x: Tensor) -> None:
    """Raise ValueError if `x` contains NaN or infinite values."""
    if not bool(torch.isfinite(x).all()):
        raise InvalidArgumentError(
            f"{name} contains NaN or infinite values: check the model's outputs before compressing them."
        )


def unit(x: Tensor) -> Tensor:
    """Return `x` with L2-normalised rows; zero rows stay zero."""
    return F.normalize(x, dim=-1, eps=1e-12)
