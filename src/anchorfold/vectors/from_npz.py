"""One NumPy archive: an array a page under its name, or all vectors in one array with offsets, as our export has it."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np

from anchorfold.errors import AnchorFoldError
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
    def _archive(self) -> np.lib.npyio.NpzFile:
        try:
            archive: np.lib.npyio.NpzFile = np.load(self.address, allow_pickle=False)
            return archive
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise AnchorFoldError(f"{self.address} cannot be read as a NumPy archive ({error}).") from error

    @property
    def _in_one_array(self) -> bool:
        return OFFSETS in self._archive.files

    def __len__(self) -> int:
        return len(self._archive[OFFSETS]) - 1 if self._in_one_array else len(self._archive.files)

    def pages(self, wanted: Wanted) -> Iterator[VectorPage]:
        """Page by page; also one large array is never in memory whole."""
        yield from self._slices(wanted) if self._in_one_array else self._arrays(wanted)

    def _arrays(self, wanted: Wanted) -> Iterator[VectorPage]:
        for name in self._archive.files:
            document, page = split_name(name)
            if wanted(document, page):
                try:
                    yield VectorPage(document, page, self._archive[name])
                except (ValueError, zipfile.BadZipFile) as error:
                    yield VectorPage(document, page, None, f"{name} cannot be read ({error})")

    def _slices(self, wanted: Wanted) -> Iterator[VectorPage]:
        small = {name: self._archive[name] for name in self._archive.files if name != self._vectors}
        offsets = small.pop(OFFSETS).astype(np.int64)
        names = [name for name in small if len(small[name]) == len(offsets) - 1]
        document = choose_field(self.fields.document, DOCUMENT_FIELDS, names, self.address)
        page = choose_field(self.fields.page, PAGE_FIELDS, names, self.address)
        with zipfile.ZipFile(self.address) as archive, archive.open(f"{self._vectors}.npy") as file:
            rows, dim, dtype = self._header(file)
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
        return choose_field(self.fields.vectors, ("vectors",), self._archive.files, self.address) or "vectors"

    def _header(self, file: IO[bytes]) -> tuple[int, int, np.dtype]:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, in_columns, dtype = read(file)
        if len(shape) != 2 or in_columns:
            raise AnchorFoldError(f"{self.address}: vectors must be one array (vectors, dim), row by row.")
        return shape[0], shape[1], dtype
