"""The inner loop of a scan: the best vector of each page for each token of a query, over a block of packed pages.

Three ways give `(tokens, pages)` maxima. NumPy's needs nothing but NumPy, which is there at once; torch's multiplies on
several threads, as floats, or as integers where the processor is quick at that (VNNI, AMX): a short trial decides.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from anchorfold.index.coding import Coding

Maxima = Callable[[np.ndarray, np.ndarray, int], np.ndarray]  # of codes (V, row_bytes), scales (V,) and vectors a page

TRIAL_VECTORS, TRIAL_TOKENS, TRIAL_ROUNDS = 1024, 16, 9
WORTHWHILE = 0.8  # of the floats' time: for less gain than that it stays at floats


def numpy_maxima(coding: Coding, tokens: np.ndarray) -> Maxima:
    """With NumPy; `tokens (t, width)` as `Coding.turn` gives them."""

    def maxima(codes: np.ndarray, scales: np.ndarray, length: int) -> np.ndarray:
        products = coding.products(tokens, codes, scales)
        best: np.ndarray = products.reshape(-1, length, len(tokens)).max(1)
        return best.T

    return maxima


def torch_maxima(coding: Coding, tokens: np.ndarray) -> Maxima:
    """With torch, multiplying floats."""
    import torch

    wide = torch.from_numpy(tokens)

    def maxima(codes: np.ndarray, scales: np.ndarray, length: int) -> np.ndarray:
        products = wide @ torch.from_numpy(coding.widen(codes)).float().T
        if not coding.is_float:
            products *= torch.from_numpy(scales).float()
        return products.view(len(tokens), -1, length).amax(2).numpy()

    return maxima


def integer_maxima(coding: Coding, tokens: np.ndarray) -> Maxima:
    """With torch, multiplying int8 with int8: tokens are rounded too, so this is for choosing pages."""
    import torch

    step = np.maximum(np.abs(tokens).max(1, keepdims=True), 1e-12) / 127
    rounded, step = torch.from_numpy(np.rint(tokens / step).astype(np.int8)), torch.from_numpy(step)

    def maxima(codes: np.ndarray, scales: np.ndarray, length: int) -> np.ndarray:
        products = torch._int_mm(rounded, torch.from_numpy(coding.widen(codes)).T).float()
        products *= torch.from_numpy(scales).float()
        return (products.view(len(tokens), -1, length).amax(2) * step).numpy()

    return maxima


@lru_cache
def integers_are_quick(coding: Coding) -> bool:
    """Whether this machine multiplies integers right and quicker than floats; some milliseconds, once a process."""
    if coding.is_float:
        return False
    from anchorfold.index.threads import one_blas_thread

    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (TRIAL_VECTORS, coding.row_bytes), np.uint8)
    scales = np.ones(TRIAL_VECTORS, np.float16)
    # Integers up to 127, so that rounding changes nothing and both must agree.
    tokens = rng.integers(-127, 128, (TRIAL_TOKENS, coding.width)).astype(np.float32)
    tokens[:, 0] = 127
    ways = [torch_maxima(coding, tokens), integer_maxima(coding, tokens)]
    best = [np.inf, np.inf]
    try:
        with one_blas_thread():
            floats, integers = (way(codes, scales, 64) for way in ways)
            if not np.array_equal(floats, integers):
                return False  # kernels for processors without VNNI overflow
            for _ in range(TRIAL_ROUNDS):
                for number, way in enumerate(ways):
                    began = time.perf_counter()
                    way(codes, scales, 64)
                    best[number] = min(best[number], time.perf_counter() - began)
    except RuntimeError:  # no such kernel here
        return False
    return best[1] < WORTHWHILE * best[0]
