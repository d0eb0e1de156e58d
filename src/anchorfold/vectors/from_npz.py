"""One NumPy archive: an array a page under its name, or all vectors in one array with offsets, as our export has it."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.vectors.npy_format import read_array, read_header
from anchorfold.vectors.source import (
    DOCUMENT_FIELDS,
    PAGE_FIELDS,
    VectorPage,
    VectorSource,
    Wanted,
    choose_field,
    page_number,
    split_name,
)

OFFSETS = "offsets"
MAX_DEFLATE_RATIO = 1032  # of zlib: no member decompresses to more
UNREADABLE = (ValueError, OSError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error)


class NpzSource(VectorSource):
    """Layouts: `{name: (N, d), ...}`; or `vectors (V, d)`, `offsets (P + 1,)`, perhaps `document` and `page (P,)`."""

    what = "a NumPy archive"

    @classmethod
    def claims(cls, address: str) -> bool:
        """A file with that ending."""
        return address.lower().endswith(".npz") and os.path.isfile(address)

    @property
    def identity(self) -> str:
        """The file."""
        return os.path.abspath(self.address)

    @cached_property
    def _archive(self) -> zipfile.ZipFile:
        try:
            return zipfile.ZipFile(self.address)
        except UNREADABLE as error:
            raise AnchorFoldError(f"{self.address} cannot be read as a NumPy archive ({error}).") from error

    @cached_property
    def _members(self) -> dict[str, zipfile.ZipInfo]:
        """The members by the names of their arrays."""
        return {member.filename.removesuffix(".npy"): member for member in self._archive.infolist()}

    @property
    def _in_one_array(self) -> bool:
        return OFFSETS in self._members

    def __len__(self) -> int:
        return len(self._required(OFFSETS)) - 1 if self._in_one_array else len(self._members)

    def pages(self, wanted: Wanted) -> Iterator[VectorPage]:
        """Page by page; also one large array is never in memory whole."""
        yield from self._slices(wanted) if self._in_one_array else self._arrays(wanted)

    def _arrays(self, wanted: Wanted) -> Iterator[VectorPage]:
        for name in self._members:
            document, page = split_name(name)
            if wanted(document, page):
                try:
                    yield VectorPage(document, page, self._array(name))
                except UNREADABLE as error:
                    yield VectorPage(document, page, None, f"{name} cannot be read ({error})")

    def _slices(self, wanted: Wanted) -> Iterator[VectorPage]:
        small = {name: self._required(name) for name in self._members if name != self._vectors}
        offsets = small.pop(OFFSETS).astype(np.int64)
        names = [name for name in small if len(small[name]) == len(offsets) - 1]
        document = choose_field(self.fields.document, DOCUMENT_FIELDS, names, self.address)
        page = choose_field(self.fields.page, PAGE_FIELDS, names, self.address)
        with self._archive.open(self._members[self._vectors]) as file:
            rows, dim, dtype = self._header(file, self._size(self._vectors))
            start = file.tell()
            if len(offsets) < 1 or offsets[0] != 0 or offsets[-1] != rows or (np.diff(offsets) < 0).any():
                raise AnchorFoldError(f"{self.address}: offsets do not fit the {rows} vectors.")
            for i in range(len(offsets) - 1):
                name = str(small[document][i]) if document else Path(self.address).stem
                number = page_number(small[page][i], self.address) if page else 1 if document else i + 1
                if wanted(name, number):
                    width = dim * dtype.itemsize
                    file.seek(start + int(offsets[i]) * width)
                    data = file.read(int(offsets[i + 1] - offsets[i]) * width)
                    yield VectorPage(name, number, np.frombuffer(data, dtype).reshape(-1, dim))

    @property
    def _vectors(self) -> str:
        name = choose_field(self.fields.vectors, ("vectors",), self._members, self.address)
        if name is None:
            raise AnchorFoldError(f"{self.address} has offsets but no vectors: name their array with --vectors.")
        return name

    def _size(self, name: str) -> int:
        """Return the bytes of a member; the archive may state more than can be in it."""
        return min(self._members[name].file_size, MAX_DEFLATE_RATIO * os.path.getsize(self.address))

    def _array(self, name: str) -> np.ndarray:
        with self._archive.open(self._members[name]) as file:
            return read_array(file, self._size(name))

    def _required(self, name: str) -> np.ndarray:
        try:
            return self._array(name)
        except UNREADABLE as error:
            raise AnchorFoldError(f"{self.address}: {name} cannot be read ({error}).") from error

    def _header(self, file: IO[bytes], size: int) -> tuple[int, int, np.dtype]:
        try:
            shape, in_columns, dtype = read_header(file, size)
        except UNREADABLE as error:
            raise AnchorFoldError(f"{self.address}: {self._vectors} cannot be read ({error}).") from error
        if len(shape) != 2 or in_columns:
            raise AnchorFoldError(f"{self.address}: vectors must be one array (vectors, dim), row by row.")
        return shape[0], shape[1], dtype
