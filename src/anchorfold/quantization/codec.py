"""Scalar quantization of document vectors to packed codes of 1 to 32 bits per component. Queries stay floats.

`Coding(dim, bits)` encodes `(n, d)` vectors as `(n, row_bytes)` bytes and `(n,)` scales. Below 16 bits, vectors are
rotated (`Rotation`) and quantized uniformly to small integers, which a scan can multiply directly.

Examples:
    >>> vectors = np.eye(4, 64, dtype=np.float32)
    >>> coding = Coding(64, 4)
    >>> codes, scales = coding.encode(vectors)
    >>> codes.shape, codes.dtype.name, scales.dtype.name
    ((4, 32), 'uint8', 'float16')
    >>> bool(np.abs(coding.decode(codes, scales) - vectors).max() < 0.1)
    True
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from anchorfold.errors import InvalidArgumentError
from anchorfold.quantization.rotation import Rotation

BITS = (32, 16, 8, 4, 2, 1)
FLOATS = {32: np.float32, 16: np.float16}
# Step sizes to try per vector, in standard deviations of its components: around the optimum of a normal distribution.
STEPS = {4: (0.26, 0.29, 0.32, 0.35, 0.39), 2: (0.8, 0.9, 1.0, 1.1, 1.2), 1: (1.0,)}
BLOCK = 1 << 22  # components that are encoded or decoded at a time
SINGLE_THREAD = 1 << 17  # multiplications of a matrix product that BLAS computes on one thread


@dataclass(frozen=True)
class Coding:
    """Encoding of `dim`-dimensional vectors with `bits` per component; below 16 bits, `seed` selects the rotation."""

    dim: int
    bits: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise InvalidArgumentError(
                f"vectors cannot be stored in {self.bits} bits: choose one of {', '.join(map(str, BITS))}."
            )

    @property
    def is_float(self) -> bool:
        """Whether components are stored as floats, without rotation or scale."""
        return self.bits in FLOATS

    @property
    def row_bytes(self) -> int:
        """Bytes per vector, without its scale."""
        return -(-self.dim * self.bits // 8)

    @property
    def vector_bytes(self) -> int:
        """Bytes per vector, with its scale."""
        return self.row_bytes + (0 if self.is_float else 2)

    @property
    def components(self) -> int:
        """Components of an unpacked vector: the dimension plus the padding of the last byte."""
        return self.row_bytes * 8 // self.bits

    @cached_property
    def rotation(self) -> Rotation:
        """Rotation of vectors and queries below 16 bits."""
        return Rotation(self.dim, self.seed)

    def encode(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Encode `(n, dim)` vectors as `(n, row_bytes)` uint8 codes and `(n,)` float16 scales (empty for floats)."""
        if self.is_float:
            stored = np.ascontiguousarray(vectors, FLOATS[self.bits])
            return stored.view(np.uint8).reshape(len(vectors), self.row_bytes), np.zeros(0, np.float16)
        codes = np.empty((len(vectors), self.row_bytes), np.uint8)
        scales = np.empty(len(vectors), np.float16)
        for rows in self._blocks(len(vectors)):
            rotated = self.rotation(vectors[rows])
            levels = _round(rotated) if self.bits == 8 else _quantize(rotated, self.bits)
            own = (rotated * rotated).sum(1)
            along = (rotated * levels).sum(1)
            scales[rows] = np.divide(own, along, out=np.zeros_like(own), where=along > 0)
            codes[rows] = self._pack(levels)
        return codes, scales

    def _pack(self, levels: np.ndarray) -> np.ndarray:
        """Pack `(n, dim)` levels into `(n, row_bytes)` uint8."""
        if self.bits == 8:
            return levels.view(np.uint8)
        numbers = np.zeros((len(levels), self.components), np.uint8)
        numbers[:, : self.dim] = (levels + np.int8((1 << self.bits) - 1)).view(np.uint8) >> 1
        packed = np.zeros((len(levels), self.row_bytes), np.uint8)
        for part, shift in enumerate(range(0, 8, self.bits)):
            packed |= numbers[:, part :: 8 // self.bits] << np.uint8(shift)
        return packed

    def unpack(self, codes: np.ndarray) -> np.ndarray:
        """Unpack codes to `(n, components)` int8 levels (one table lookup per byte, or a view) or floats (a view)."""
        if self.is_float:
            return codes.view(FLOATS[self.bits])
        if self.bits == 8:
            return codes.view(np.int8)
        return _table(self.bits).take(codes).view(np.int8)

    def rotate_queries(self, queries: np.ndarray) -> np.ndarray:
        """Return `(t, components)` float32 queries to multiply with unpacked codes: rotated below 16 bits."""
        if self.is_float:
            return np.asarray(queries, np.float32)
        rotated = np.zeros((len(queries), self.components), np.float32)
        # In small parts: BLAS would use threads for larger products, which wait for each other on a busy machine.
        step = max(1, SINGLE_THREAD // int(self.dim**1.5))
        for start in range(0, len(queries), step):
            rotated[start : start + step, : self.dim] = self.rotation(queries[start : start + step])
        return rotated

    def decode(self, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Decode packed codes to `(n, dim)` float32 vectors."""
        if self.is_float:
            return self.unpack(np.ascontiguousarray(codes)).astype(np.float32)
        vectors = np.empty((len(codes), self.dim), np.float32)
        for rows in self._blocks(len(codes)):
            levels = self.unpack(np.ascontiguousarray(codes[rows]))[:, : self.dim]
            vectors[rows] = self.rotation.inverse(levels * scales[rows, None].astype(np.float32))
        return vectors

    def products(self, queries: np.ndarray, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Return `(n, t)` float32 inner products of packed codes and rotated queries."""
        products: np.ndarray = self.unpack(codes).astype(np.float32) @ queries.T
        return products if self.is_float else np.multiply(products, scales[:, None].astype(np.float32))

    def _blocks(self, rows: int) -> Iterator[slice]:
        step = max(1, BLOCK // self.dim)
        return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _round(vectors: np.ndarray) -> np.ndarray:
    """Round vectors to `(n, d)` int8 levels from -127 to 127."""
    largest = np.maximum(np.abs(vectors).max(1, initial=0.0, keepdims=True), 1e-30)
    levels: np.ndarray = np.rint(vectors * (127 / largest))
    return levels.astype(np.int8)


def _quantize(vectors: np.ndarray, bits: int) -> np.ndarray:
    """Quantize to `(n, d)` int8 levels (odd integers) with the step size that maximizes each vector's cosine."""
    half = 1 << (bits - 1)
    deviation = np.sqrt((vectors * vectors).mean(1, keepdims=True)) + 1e-30
    best, levels = np.full(len(vectors), -np.inf, np.float32), np.empty(vectors.shape, np.int8)
    for step in STEPS[bits]:
        trial = np.floor(vectors / (step * deviation)).clip(-half, half - 1) * 2 + 1
        cosine = (trial * vectors).sum(1) / np.sqrt((trial * trial).sum(1))
        better = cosine > best
        best[better] = cosine[better]
        levels[better] = trial[better].astype(np.int8)
    return levels


@lru_cache
def _table(bits: int) -> np.ndarray:
    """Return the int8 levels of each byte, viewed as one integer: one lookup unpacks 8 / bits codes."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (np.arange(256, dtype=np.uint8)[:, None] >> shifts) & np.uint8((1 << bits) - 1)
    levels = (numbers.astype(np.int16) * 2 + 1 - (1 << bits)).astype(np.int8)
    return np.ascontiguousarray(levels).view(f"u{8 // bits}")[:, 0]
