"""Training checkpoints, and the running average of the weights that they contain."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

DECAY = 0.998  # averages over roughly the last 500 steps


def save(path: Path, **state: Any) -> None:
    """Write a checkpoint atomically, so that an interruption leaves the previous one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    torch.save(state, temporary)
    os.replace(temporary, path)


def load(path: Path) -> dict[str, Any] | None:
    """Read a checkpoint; None if there is none."""
    return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None


class RunningAverage:
    """Exponential moving average of the trained parameters, with a shorter memory during the first steps."""

    def __init__(self, model: nn.Module, stored: Mapping[str, Tensor] | None = None, steps: int = 0) -> None:
        """Start from the current parameters, or from a `stored` average of that many `steps`."""
        self.model, self.steps = model, steps
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.mean = {name: (stored or {}).get(name, p).detach().clone() for name, p in self.trained.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Add the parameters after a step."""
        self.steps += 1
        weight = 1 - min(DECAY, self.steps / (self.steps + 9))
        torch._foreach_lerp_(list(self.mean.values()), list(self.trained.values()), weight)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the model's state with averaged parameters."""
        return self.model.state_dict() | self.mean
