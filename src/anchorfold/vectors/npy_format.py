"""Arrays in the NPY format from untrusted files: the header is compared with the file before memory is allocated."""

from __future__ import annotations

import math
from typing import IO

import numpy as np


def read_header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of an array and leave the file at its data.

    Args:
        file: at the start of the array.
        size: bytes of the array, header included.

    Returns:
        The shape, whether the array is stored column by column, and the type.

    Raises:
        ValueError: the header is damaged, or describes more data than there is.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_column, dtype = read(file)
    stated, stored = math.prod(shape) * dtype.itemsize, size - file.tell()
    if min(shape, default=0) < 0 or (stated > stored and not dtype.hasobject):
        raise ValueError(f"its header states {stated:,} bytes of data for the shape {shape}, the file has {stored:,}")
    return shape, by_column, dtype


def read_array(file: IO[bytes], size: int) -> np.ndarray:
    """Read a whole array; arguments and errors are those of `read_header`."""
    start = file.tell()
    read_header(file, size)
    file.seek(start)
    array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array
