"""A digest of a model's weights: the same on every device and in every precision."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

SAMPLE = 16


def weights_fingerprint(kind: str, weights: Mapping[str, Tensor]) -> str:
    """From the names, shapes and some values of all tensors; `kind` tells apart what weights do not show."""
    digest = hashlib.blake2b(kind.encode(), digest_size=12)
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        flat = weight.detach().flatten()
        # A few values of each tensor tell two trainings apart; reading all of a large model takes a minute.
        sample = flat[:: max(1, len(flat) // SAMPLE)][:SAMPLE].cpu()
        digest.update(sample.to(torch.bfloat16).float().numpy().tobytes())
    return digest.hexdigest()


def kind_of(family: str, causal: bool) -> str:
    """What weights do not show: the same ones with and without a causal mask give other vectors."""
    return f"{family} causal={causal}"
