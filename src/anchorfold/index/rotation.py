"""A fixed rotation that spreads a vector evenly over its coordinates: few bits of each then say as much as they can."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

ROUNDS = 4  # two over the first coordinates and two over the last: for any dimension, all are mixed


class Rotation:
    """An orthogonal map of `dim` dimensions, the same on every machine and for ever for the same seed.

    Each round flips signs, drawn from SHAKE-128, and applies a Hadamard transform to as many coordinates as the largest
    power of two: the first ones and the last ones in turn, which are all of them if `dim` is a power of two.

    >>> turn = Rotation(6)
    >>> x = np.eye(6, dtype=np.float32)
    >>> bool(np.allclose(turn.inverse(turn(x)), x, atol=1e-6))
    True
    """

    def __init__(self, dim: int, seed: int = 0) -> None:
        if dim < 1:
            raise ValueError(f"a rotation needs at least 1 dimension, got {dim}.")
        self.dim, self.width = dim, 1 << (dim.bit_length() - 1)
        row = -(-dim // 8)
        drawn = hashlib.shake_128(f"anchorfold rotation {dim} {seed}".encode()).digest(ROUNDS * row)
        bits = np.unpackbits(np.frombuffer(drawn, np.uint8).reshape(ROUNDS, row), axis=1)[:, :dim]
        self.signs = bits.astype(np.float32) * 2 - 1

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """`(n, dim)` rotated, in float32."""
        turned = np.array(vectors, np.float32)
        for number, signs in enumerate(self.signs):
            turned *= signs
            part = self._part(turned, number)
            part[:] = hadamard(part)
        return turned

    def inverse(self, vectors: np.ndarray) -> np.ndarray:
        """`(n, dim)` rotated back, in float32."""
        turned = np.array(vectors, np.float32)
        for number in range(ROUNDS - 1, -1, -1):
            part = self._part(turned, number)
            part[:] = hadamard(part)
            turned *= self.signs[number]
        return turned

    def _part(self, vectors: np.ndarray, number: int) -> np.ndarray:
        return vectors[:, : self.width] if number % 2 == 0 else vectors[:, self.dim - self.width :]


def hadamard(vectors: np.ndarray) -> np.ndarray:
    """The orthonormal Hadamard transform of rows `(n, w)`, w a power of two: as two small products a row."""
    n, width = vectors.shape
    across = 1 << ((width.bit_length() - 1) // 2)
    down = width // across
    rows = np.ascontiguousarray(vectors).reshape(n * across, down) @ _matrix(down)
    columns: np.ndarray = rows.reshape(n, across, down).transpose(0, 2, 1).reshape(n * down, across) @ _matrix(across)
    return columns.reshape(n, down, across).transpose(0, 2, 1).reshape(n, width)


@lru_cache
def _matrix(size: int) -> np.ndarray:
    matrix: np.ndarray = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]]) / np.float32(2**0.5)
    return matrix.astype(np.float32)
