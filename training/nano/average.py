"""A running average of the weights: at any time about as good as if the rate had come to rest there."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

DECAY = 0.998  # the last 500 steps, mostly


class RunningAverage:
    """The average of a model's trained parameters over its last steps; young averages forget faster."""

    def __init__(self, model: nn.Module, stored: Mapping[str, Tensor] | None = None, steps: int = 0) -> None:
        """Begin with the model as it is, or with an average of so many `steps` that was `stored`."""
        self.model, self.steps = model, steps
        self.trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.mean = {name: (stored or {}).get(name, p).detach().clone() for name, p in self.trained.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take in the model after a step."""
        self.steps += 1
        forgotten = 1 - min(DECAY, self.steps / (self.steps + 9))
        torch._foreach_lerp_(list(self.mean.values()), list(self.trained.values()), forgotten)

    def state_dict(self) -> dict[str, Tensor]:
        """The model's state with averaged parameters."""
        return self.model.state_dict() | self.mean
