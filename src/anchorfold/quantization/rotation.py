"""Fixed pseudo-random rotation that spreads a vector evenly over its components, which reduces quantization error."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

ROUNDS = 4  # two over the first and two over the last components, which mixes all of them for any dimension


class Rotation:
    """Orthogonal map of `dim` dimensions. Stable: the same seed gives the same rotation on every machine and version.

    Rounds flip signs (SHAKE-128) and apply a Hadamard transform to the first or last 2^k <= dim components in turn.

    Examples:
        >>> rotation = Rotation(6)
        >>> x = np.eye(6, dtype=np.float32)
        >>> bool(np.allclose(rotation.inverse(rotation(x)), x, atol=1e-6))
        True
    """

    def __init__(self, dim: int, seed: int = 0) -> None:
        if dim < 1:
            raise ValueError(f"a rotation needs at least 1 dimension, got {dim}.")
        self.dim, self.block = dim, 1 << (dim.bit_length() - 1)
        row = -(-dim // 8)
        drawn = hashlib.shake_128(f"anchorfold rotation {dim} {seed}".encode()).digest(ROUNDS * row)
        bits = np.unpackbits(np.frombuffer(drawn, np.uint8).reshape(ROUNDS, row), axis=1)[:, :dim]
        self.signs = bits.astype(np.float32) * 2 - 1

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Rotate `(n, dim)` vectors; the result is float32."""
        rotated = np.array(vectors, np.float32)
        for number, signs in enumerate(self.signs):
            rotated *= signs
            part = self._part(rotated, number)
            part[:] = hadamard(part)
        return rotated

    def inverse(self, vectors: np.ndarray) -> np.ndarray:
        """Apply the inverse rotation to `(n, dim)` vectors; the result is float32."""
        rotated = np.array(vectors, np.float32)
        for number in range(ROUNDS - 1, -1, -1):
            part = self._part(rotated, number)
            part[:] = hadamard(part)
            rotated *= self.signs[number]
        return rotated

    def _part(self, vectors: np.ndarray, number: int) -> np.ndarray:
        return vectors[:, : self.block] if number % 2 == 0 else vectors[:, self.dim - self.block :]


def hadamard(vectors: np.ndarray) -> np.ndarray:
    """Return the orthonormal Hadamard transform of rows `(n, w)`, w a power of two: two small products per row."""
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
