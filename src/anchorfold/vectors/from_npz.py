"""NumPy archives (.npz), including those written by `anchorfold export`."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.vectors.from_npy import read_array, read_header
from anchorfold.vectors.vector_source import UNREADABLE, ArraySource, error_summary

MAX_DEFLATE_RATIO = 1032  # of zlib


class NpzSource(ArraySource):
    """Arrays of an archive, in the layouts of `ArraySource`."""

    description = "a NumPy archive"

    @classmethod
    def accepts(cls, address: str) -> bool:
        """Return whether a file has the extension .npz."""
        return address.lower().endswith(".npz") and os.path.isfile(address)

    @cached_property
    def _archive(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.address)
        except UNREADABLE as error:
            raise AnchorFoldError(f"{self.address} cannot be read as a NumPy archive ({error}).") from error

    @cached_property
    def _members(self) -> dict[str, zipfile.ZipInfo]:
        return {member.filename.removesuffix(".npy"): member for member in self._archive.infolist()}

    @property
    def names(self) -> Sequence[str]:
        """Names of the arrays."""
        return list(self._members)

    def read(self, name: str) -> np.ndarray:
        """Read an array."""
        with self._archive.open(self._members[name]) as file:
            return read_array(file, self._size(name))

    @contextmanager
    def open_rows(self, name: str) -> Iterator[tuple[int, Callable[[int, int], np.ndarray]]]:
        """Open an array for reading by rows."""
        with self._archive.open(self._members[name]) as file:
            try:
                shape, column_major, dtype = read_header(file, self._size(name))
            except UNREADABLE as error:
                raise AnchorFoldError(f"{self.address}: {name} cannot be read ({error_summary(error)}).") from error
            if len(shape) != 2 or column_major:
                raise AnchorFoldError(f"{self.address}: {name} must be a row-major array (vectors, dim).")
            start, row_bytes = file.tell(), shape[1] * dtype.itemsize

            def read_rows(first: int, last: int) -> np.ndarray:
                file.seek(start + first * row_bytes)
                return np.frombuffer(file.read((last - first) * row_bytes), dtype).reshape(-1, shape[1])

            yield shape[0], read_rows

    def _size(self, name: str) -> int:
        """Return the bytes of a member, limited to what the archive can contain."""
        return min(self._members[name].file_size, MAX_DEFLATE_RATIO * os.path.getsize(self.address))
