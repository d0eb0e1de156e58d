"""MaxSim kernels: a compiled library (`maxsim.c`) if the installation has one, else NumPy.

`maxsim` scores lists of pages directly on stored codes; scores of different kernels agree within an error bound.
`rescore` returns the same bits with every kernel. The environment variable `ANCHORFOLD_KERNEL` selects one of `numpy`,
`baseline`, `avx2`, `avx512` and `avx512vnni`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.errors import InvalidArgumentError
from anchorfold.quantization.codec import Coding

LIBRARY = Path(__file__).with_name("_maxsim.so")
VARIABLE = "ANCHORFOLD_KERNEL"
LEVELS = ("baseline", "avx2", "avx512", "avx512vnni")  # each includes the ones before
BLOCK = 1 << 20  # components that NumPy unpacks at a time
SUMS = 16  # partial sums per inner product when pages are rescored


class _Request(ctypes.Structure):
    """The structure of the same name in `maxsim.c`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("codes", "scales", "starts", "pages")),
        *((name, ctypes.c_int64) for name in ("page_count", "bits", "row_bytes")),
        ("tokens", ctypes.c_void_p), ("token_count", ctypes.c_int64), ("components", ctypes.c_int64),
        ("query_starts", ctypes.c_void_p), ("query_count", ctypes.c_int64),
        ("scores", ctypes.c_void_p), ("score_stride", ctypes.c_int64),
        ("errors", ctypes.c_void_p), ("threads", ctypes.c_int64),
    )  # fmt: skip


@dataclass(frozen=True)
class Tokens:
    """Rotated tokens `(t, components)` of one or more queries; query i has the tokens from `starts[i]` on."""

    values: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, queries: Sequence[Any], coding: Coding) -> Tokens:
        """Rotate queries, `(tokens, d)` each.

        Raises:
            InvalidArgumentError: a query contains NaN or infinite values.
        """
        # One by one, because a product with more rows may round differently.
        arrays = [coding.rotate_queries(np.asarray(query, np.float32).reshape(-1, coding.dim)) for query in queries]
        if not all(np.isfinite(array).all() for array in arrays):
            raise InvalidArgumentError("a query vector contains NaN or infinite values: check the query encoder.")
        starts = np.concatenate(([0], np.cumsum([len(array) for array in arrays], dtype=np.int64)))
        return cls(np.concatenate([np.zeros((0, coding.components), np.float32), *arrays]), starts)


@lru_cache
def kernel() -> str:
    """Return the name of the kernel that this process uses: an instruction set, or `numpy`.

    Raises:
        InvalidArgumentError: `ANCHORFOLD_KERNEL` names a kernel that is not available.
    """
    library, chosen = _library(), os.environ.get(VARIABLE, "")
    if library is None:
        available: tuple[str, ...] = ("numpy",)
    else:
        fastest = library.instruction_set().decode()
        usable = [name for name in LEVELS[: LEVELS.index(fastest) + 1] if hasattr(library, f"rescore_{name}")]
        available = ("numpy", *usable)
    if chosen and chosen not in available:
        raise InvalidArgumentError(
            f"{VARIABLE}={chosen}: this kernel is not available here. Choose one of {', '.join(available)}."
        )
    return chosen or available[-1]


@lru_cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(str(LIBRARY))
        library.sum_list_gains  # noqa: B018
    except (OSError, AttributeError):  # it was not built, for another system, or from older sources
        return None
    library.instruction_set.restype = ctypes.c_char_p
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    library.sum_list_gains.argtypes = [pointer, pointer, integer, pointer, pointer, *[integer] * 3, pointer, pointer]
    library.sum_list_gains.restype = None
    return library


def processors() -> int:
    """Return the number of processors that this process may use."""
    # macOS does not report which processors a process may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def maxsim(
    coding: Coding, codes: np.ndarray, scales: np.ndarray, starts: np.ndarray, pages: np.ndarray, tokens: Tokens
) -> tuple[np.ndarray, np.ndarray]:
    """Score pages.

    Args:
        coding: encoding of the codes.
        codes: `(V, row_bytes)` uint8, contiguous.
        scales: `(V,)` float16; empty for floats.
        starts: `(n + 1,)` int64, the first row of each page and the end.
        pages: `(p,)` int64, the pages to score.
        tokens: tokens of q queries.

    Returns:
        Scores `(q, p)`, minus infinity for pages without vectors, and the bounds `(q,)` of their absolute error beyond
        the rounding of float32.
    """
    queries = len(tokens.starts) - 1
    scores, errors = np.empty((queries, len(pages)), np.float32), np.zeros(queries, np.float32)
    if not len(tokens.values) or not len(pages):
        scores[:] = 0
    elif kernel() == "numpy":
        _numpy_maxsim(coding, codes, scales, starts, pages, tokens, scores)
    else:
        _call("maxsim", coding, codes, scales, starts, pages, tokens, scores, errors)
    return scores, errors


def rescore(
    coding: Coding, codes: np.ndarray, scales: np.ndarray, starts: np.ndarray, pages: np.ndarray, tokens: np.ndarray
) -> np.ndarray:
    """Return the `(p,)` float32 scores of pages for the rotated tokens of one query.

    The order of all operations is fixed, so that every kernel and every list of pages gives the same bits.

    Args:
        coding: encoding of the codes.
        codes: `(V, row_bytes)` uint8, contiguous.
        scales: `(V,)` float16; empty for floats.
        starts: `(n + 1,)` int64, the first row of each page and the end.
        pages: `(p,)` int64, the pages to score; they must have vectors.
        tokens: `(t, components)` float32.
    """
    if kernel() == "numpy":
        parts = zip(starts[pages].tolist(), starts[pages + 1].tolist(), strict=True)
        return np.array([_numpy_rescore(coding, codes[a:b], scales[a:b], tokens) for a, b in parts], np.float32)
    scores = np.empty((1, len(pages)), np.float32)
    query = Tokens(np.ascontiguousarray(tokens), np.array([0, len(tokens)]))
    _call("rescore", coding, codes, scales, starts, pages, query, scores, np.zeros(1, np.float32))
    first: np.ndarray = scores[0]
    return first


def _call(
    function: str, coding: Coding, codes: np.ndarray, scales: np.ndarray, starts: np.ndarray, pages: np.ndarray,
    tokens: Tokens, scores: np.ndarray, errors: np.ndarray,
) -> None:  # fmt: skip
    """Call a function of the library, which writes scores and error bounds."""
    pages, starts = np.ascontiguousarray(pages, np.int64), np.ascontiguousarray(starts, np.int64)
    request = _Request(
        codes.ctypes.data, None if coding.is_float else scales.ctypes.data, starts.ctypes.data, pages.ctypes.data,
        len(pages), coding.bits, coding.row_bytes, tokens.values.ctypes.data, *tokens.values.shape,
        tokens.starts.ctypes.data, len(scores), scores.ctypes.data, len(pages), errors.ctypes.data, processors(),
    )  # fmt: skip
    if getattr(_library(), f"{function}_{kernel()}")(ctypes.byref(request)):
        raise MemoryError(f"no memory to score {len(pages)} pages.")


def _numpy_maxsim(
    coding: Coding, codes: np.ndarray, scales: np.ndarray, starts: np.ndarray, pages: np.ndarray, tokens: Tokens,
    scores: np.ndarray,
) -> None:  # fmt: skip
    lengths = starts[pages + 1] - starts[pages]
    scores[:, lengths == 0] = np.where(np.diff(tokens.starts) > 0, -np.inf, 0)[:, None]
    filled = np.flatnonzero(lengths)
    step = max(1, BLOCK // (coding.components * max(1, int(lengths.max(initial=1)))))
    for first in range(0, len(filled), step):
        chosen = filled[first : first + step]
        ends = lengths[chosen].cumsum()
        firsts = ends - lengths[chosen]
        rows = np.arange(ends[-1]) + np.repeat(starts[pages[chosen]] - firsts, lengths[chosen])
        products = coding.products(tokens.values, codes[rows], scales[rows] if len(scales) else scales)
        best = np.maximum.reduceat(products, firsts, axis=0)
        for query, (a, b) in enumerate(zip(tokens.starts[:-1].tolist(), tokens.starts[1:].tolist(), strict=True)):
            scores[query, chosen] = best[:, a:b].sum(1)


def _numpy_rescore(coding: Coding, codes: np.ndarray, scales: np.ndarray, tokens: np.ndarray) -> np.float32:
    """Score one page as `rescore` in `maxsim.c` does: 16 sums of every 16th product, added in halves."""
    width = -(-coding.components // SUMS) * SUMS
    rows, padded = np.zeros((len(codes), 1, width), np.float32), np.zeros((len(tokens), width), np.float32)
    rows[:, 0, : coding.components], padded[:, : coding.components] = coding.unpack(codes), tokens
    sums = np.zeros((len(codes), len(tokens), SUMS), np.float32)
    for at in range(0, width, SUMS):
        sums += rows[:, :, at : at + SUMS] * padded[:, at : at + SUMS]
    while sums.shape[2] > 1:
        sums = sums[:, :, : sums.shape[2] // 2] + sums[:, :, sums.shape[2] // 2 :]
    products = sums[:, :, 0] if coding.is_float else sums[:, :, 0] * scales[:, None].astype(np.float32)
    score: np.float32 = np.fmax.reduce(products, axis=0).cumsum(dtype=np.float32)[-1]
    return score


def sum_gains(bounds: np.ndarray, pages: np.ndarray, probed: np.ndarray, values: np.ndarray, rows: int) -> np.ndarray:
    """Return the `(rows,)` gains of pages, summed over the tokens of a query.

    Per token, a page gains the value of the last probed posting list that contains it.

    Args:
        bounds: `(lists + 1,)` int64, the bounds of the posting lists in `pages`.
        pages: uint16 or uint32 page numbers.
        probed: `(tokens, n)` int64, the probed posting lists.
        values: `(tokens, n)` float32, the gain of each, in ascending order.
        rows: number of pages.
    """
    totals = np.zeros(rows, np.float32)
    if kernel() != "numpy":
        library, seen = _library(), np.zeros(rows, np.uint8)
        assert library is not None
        probed, values = np.ascontiguousarray(probed, np.int64), np.ascontiguousarray(values, np.float32)
        library.sum_list_gains(
            bounds.ctypes.data, pages.ctypes.data, pages.itemsize, probed.ctypes.data, values.ctypes.data,
            *probed.shape, rows, seen.ctypes.data, totals.ctypes.data,
        )  # fmt: skip
        return totals
    gains = np.zeros(rows, np.float32)
    for lists, gain in zip(probed, values, strict=True):
        starts, stops = bounds[lists], bounds[lists + 1]
        members = np.concatenate([pages[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)])
        gains[members] = np.repeat(gain, stops - starts)
        totals += gains
        gains[members] = 0
    return totals


def nth_largest(values: np.ndarray, n: int) -> float:
    """Return the n-th largest of more than n values; faster than `np.partition` for many values."""
    if len(values) > 32 * n:
        parts = np.fmax.reduce(values[: len(values) // 16 * 16].reshape(16, -1), axis=0)
        bound = np.partition(parts, len(parts) - n)[len(parts) - n]  # at least n values are as large
        if np.isfinite(bound):
            values = values[values >= bound]
    return float(np.partition(values, len(values) - n)[len(values) - n])
