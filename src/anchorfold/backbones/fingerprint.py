"""A digest of a model's weights: the same on every device and in every precision."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

SAMPLE = 16


def weights_fingerprint(kind: str, weights: Mapping[str, Any]) -> str:
    """From the names, shapes and some values of all tensors or arrays; `kind` tells apart what weights do not show."""
    digest = hashlib.blake2b(kind.encode(), digest_size=12)
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {tuple(weight.shape)}".encode())
        digest.update(as_bfloat16(_sample(weight)).tobytes())
    return digest.hexdigest()


def _sample(weight: Any) -> np.ndarray:
    """A few values in float32: they tell two trainings apart, and reading all of a large model takes a minute."""
    flat = weight.reshape(-1) if isinstance(weight, np.ndarray) else weight.detach().reshape(-1)
    sample = flat[:: max(1, len(flat) // SAMPLE)][:SAMPLE]
    return sample.astype(np.float32) if isinstance(sample, np.ndarray) else np.asarray(sample.float().cpu())


def as_bfloat16(values: np.ndarray) -> np.ndarray:
    """Float32 rounded to what bfloat16 can hold: to the nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return rounded.astype(np.uint32).view(np.float32)


def kind_of(family: str, causal: bool) -> str:
    """What weights do not show: the same ones with and without a causal mask give other vectors."""
    return f"{family} causal={causal}"
