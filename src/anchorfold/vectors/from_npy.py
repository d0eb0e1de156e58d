"""Folders of .npy files, one `(N, d)` array per page, read recursively."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from tokenize import TokenError
from typing import IO

import numpy as np

from anchorfold.vectors.vector_source import ArraySource


class NpySource(ArraySource):
    """File names contain the page number: `report.pdf/3.npy` or `report_page_3.npy`; otherwise it is 1."""

    description = "a folder of .npy files, one per page"
    has_offsets = False

    @classmethod
    def accepts(cls, address: str) -> bool:
        """Return whether a folder contains .npy files, recursively."""
        return os.path.isdir(address) and next(Path(address).rglob("*.npy"), None) is not None

    @cached_property
    def names(self) -> Sequence[str]:
        """Relative paths without the extension."""
        root = Path(self.address)
        files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.npy"))
        return [name.removesuffix(".npy") for name in files]

    def read(self, name: str) -> np.ndarray:
        """Read a file."""
        path = Path(self.address) / f"{name}.npy"
        with path.open("rb") as file:
            return read_array(file, path.stat().st_size)


def read_header(file: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of an array in the NPY format and leave the file at its data.

    The file is untrusted: the header is compared with the size of the file before memory is allocated.

    Args:
        file: at the start of the array.
        size: bytes of the array, header included.

    Returns:
        The shape, whether the array is stored in column-major order, and the type.

    Raises:
        ValueError: the header is damaged or states more data than the file contains.
    """
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, column_major, dtype = read(file)
    except (TypeError, TokenError, RecursionError) as error:  # NumPy evaluates the header as a Python literal
        raise ValueError(f"its header is damaged: {error}") from error
    stated, stored = math.prod(shape) * dtype.itemsize, size - file.tell()
    if any(type(n) is not int or n < 0 for n in shape) or (stated > stored and not dtype.hasobject):
        raise ValueError(f"its header states {stated:,} bytes of data for the shape {shape}, the file has {stored:,}")
    return shape, column_major, dtype


def read_array(file: IO[bytes], size: int) -> np.ndarray:
    """Read a whole array; arguments and errors are those of `read_header`."""
    start = file.tell()
    read_header(file, size)
    file.seek(start)
    array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
    return array
