"""Vectors as packed codes of 1 to 32 bits a dimension, for documents alone: queries stay floats.

`Coding(dim, bits)` turns `(n, d)` vectors into `(n, row_bytes)` bytes and `(n,)` scales, and back. Below 16 bits a
vector is rotated (`Rotation`) and quantised in uniform steps; codes are small integers, and a scan can multiply them as
such:

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

from anchorfold.index.rotation import Rotation

BITS = (32, 16, 8, 4, 2, 1)
FLOATS = {32: np.float32, 16: np.float16}
# Steps to try for each vector, in standard deviations of its coordinates: round the best one for a normal distribution.
STEPS = {4: (0.26, 0.29, 0.32, 0.35, 0.39), 2: (0.8, 0.9, 1.0, 1.1, 1.2), 1: (1.0,)}
BLOCK = 1 << 22  # numbers that are encoded or decoded at a time


@dataclass(frozen=True)
class Coding:
    """How an index stores vectors of `dim` dimensions: `bits` a number, after the rotation of `seed` below 16."""

    dim: int
    bits: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise ValueError(
                f"vectors cannot be stored in {self.bits} bits: choose one of {', '.join(map(str, BITS))}."
            )

    @property
    def is_float(self) -> bool:
        """Whether numbers are stored as they are: no rotation, no scale."""
        return self.bits in FLOATS

    @property
    def row_bytes(self) -> int:
        """Bytes of a vector's codes."""
        return -(-self.dim * self.bits // 8)

    @property
    def vector_bytes(self) -> int:
        """Bytes of a vector with its scale."""
        return self.row_bytes + (0 if self.is_float else 2)

    @property
    def width(self) -> int:
        """Numbers of a widened vector: the dimension, and what fills up the last byte."""
        return self.row_bytes * 8 // self.bits

    @cached_property
    def rotation(self) -> Rotation:
        """Of vectors and queries alike, below 16 bits."""
        return Rotation(self.dim, self.seed)

    def encode(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`(n, row_bytes)` uint8 codes and `(n,)` float16 scales of `(n, dim)` vectors; scales are empty for floats."""
        if self.is_float:
            stored = np.ascontiguousarray(vectors, FLOATS[self.bits])
            return stored.view(np.uint8).reshape(len(vectors), self.row_bytes), np.zeros(0, np.float16)
        codes = np.empty((len(vectors), self.row_bytes), np.uint8)
        scales = np.empty(len(vectors), np.float16)
        for rows in self._blocks(len(vectors)):
            turned = self.rotation(vectors[rows])
            levels = _rounded(turned) if self.bits == 8 else _quantised(turned, self.bits)
            own = (turned * turned).sum(1)
            along = (turned * levels).sum(1)
            scales[rows] = np.divide(own, along, out=np.zeros_like(own), where=along > 0)
            codes[rows] = self._packed(levels)
        return codes, scales

    def _packed(self, levels: np.ndarray) -> np.ndarray:
        """`(n, row_bytes)` uint8 of `(n, dim)` levels."""
        if self.bits == 8:
            return levels.view(np.uint8)
        numbers = np.zeros((len(levels), self.width), np.uint8)
        numbers[:, : self.dim] = (levels + np.int8((1 << self.bits) - 1)).view(np.uint8) >> 1
        packed = np.zeros((len(levels), self.row_bytes), np.uint8)
        for part, shift in enumerate(range(0, 8, self.bits)):
            packed |= numbers[:, part :: 8 // self.bits] << np.uint8(shift)
        return packed

    def widen(self, codes: np.ndarray) -> np.ndarray:
        """`(n, width)` numbers of packed rows: int8 levels, or the floats themselves; a look-up a byte, or a view."""
        if self.is_float:
            return codes.view(FLOATS[self.bits])
        if self.bits == 8:
            return codes.view(np.int8)
        return _table(self.bits).take(codes).view(np.int8)

    def turn(self, queries: np.ndarray) -> np.ndarray:
        """`(t, width)` float32 queries as they are multiplied with widened rows: rotated below 16 bits."""
        if self.is_float:
            return np.asarray(queries, np.float32)
        turned = np.zeros((len(queries), self.width), np.float32)
        turned[:, : self.dim] = self.rotation(queries)
        return turned

    def decode(self, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """`(n, dim)` float32 vectors of packed rows."""
        if self.is_float:
            return self.widen(np.ascontiguousarray(codes)).astype(np.float32)
        vectors = np.empty((len(codes), self.dim), np.float32)
        for rows in self._blocks(len(codes)):
            levels = self.widen(np.ascontiguousarray(codes[rows]))[:, : self.dim]
            vectors[rows] = self.rotation.inverse(levels * scales[rows, None].astype(np.float32))
        return vectors

    def products(self, queries: np.ndarray, codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """`(n, t)` inner products of packed rows with turned queries, in float32."""
        products: np.ndarray = self.widen(codes).astype(np.float32) @ queries.T
        return products if self.is_float else np.multiply(products, scales[:, None].astype(np.float32))

    def _blocks(self, rows: int) -> Iterator[slice]:
        step = max(1, BLOCK // self.dim)
        return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _rounded(vectors: np.ndarray) -> np.ndarray:
    """`(n, d)` int8 levels -127 to 127."""
    largest = np.maximum(np.abs(vectors).max(1, initial=0.0, keepdims=True), 1e-30)
    levels: np.ndarray = np.rint(vectors * (127 / largest))
    return levels.astype(np.int8)


def _quantised(vectors: np.ndarray, bits: int) -> np.ndarray:
    """`(n, d)` int8 levels, the odd numbers round 0, in the steps that keep each vector's direction best."""
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
    """For each byte its levels as int8, seen as one number: looking it up widens 8 / bits codes at once."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (np.arange(256, dtype=np.uint8)[:, None] >> shifts) & np.uint8((1 << bits) - 1)
    levels = (numbers.astype(np.int16) * 2 + 1 - (1 << bits)).astype(np.int8)
    return np.ascontiguousarray(levels).view(f"u{8 // bits}")[:, 0]
