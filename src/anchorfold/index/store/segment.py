"""A segment: an immutable file of pages.

`codes` and `scales` hold all vectors of all pages below each other; blobs have a length and a checksum a page, so that
one can be read without the others.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from anchorfold.errors import DamagedError
from anchorfold.index.coding import Coding
from anchorfold.index.store.catalogue import FileEntry
from anchorfold.index.store.columns import ColumnFile, Fault

NUMBERS = ("document", "page", "full", "kept")  # a page: whose it is, which, vectors before and after
BLOBS = ("provenance", "thumbnail", "problem")


class Segment(ColumnFile):
    """Pages of an index: `document`, `page`, `full` and `kept` `(n,)`, and where the vectors of each begin."""

    def __init__(self, path: Path, entry: FileEntry, fault: Fault) -> None:
        super().__init__(path, entry, fault)
        self.document, self.page, self.full, self.kept = (self.column(name) for name in NUMBERS)
        self.starts = np.concatenate(([0], self.kept.cumsum(dtype=np.int64)))
        self._blob_starts: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.document)

    def _owners(self, name: str) -> Sequence[int]:
        return () if name in NUMBERS else np.unique(self.document).tolist()

    @property
    def codes(self) -> np.ndarray:
        """`(V, row_bytes)` uint8, all vectors."""
        return self.column("codes")

    @property
    def scales(self) -> np.ndarray:
        """`(V,)` float16; empty where vectors are floats."""
        return self.column("scales")

    def intact(self) -> np.ndarray:
        """`(n,)` true for pages of which every byte is as it was written; an error if that cannot be told."""
        whole = np.ones(len(self), bool)
        for name in ("codes", "scales"):
            array = self._array(name)
            if len(array):
                size = array.nbytes // len(array)
                whole &= self.intact_bytes(name, self.starts[:-1] * size, self.starts[1:] * size)
        for name in BLOBS:
            for row in range(len(self)):
                try:
                    self.blob(name, row)
                except DamagedError:
                    whole[row] = False
        return whole

    def rows_of(self, row: int) -> slice:
        """Where the vectors of a page are."""
        return slice(int(self.starts[row]), int(self.starts[row + 1]))

    def coded(self, rows: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The codes and scales of some vectors, without reading the others."""
        scales = self.rows("scales", rows) if len(self._array("scales")) else self.scales
        return self.rows("codes", rows), scales

    def vectors(self, row: int, coding: Coding) -> np.ndarray:
        """`(m, d)` float32 vectors of a page."""
        return coding.decode(*self.coded(self.rows_of(row)))

    def blob_numbers(self, name: str, number: str) -> np.ndarray:
        """`(n,)` the `length` or `checksum` of the blobs of a kind; 0 in a segment that was written without it."""
        column = f"{name}.{number}"
        return self.column(column) if column in self._described else np.zeros(len(self), np.uint32)

    def blob_starts(self, name: str) -> np.ndarray:
        """`(n + 1,)` where the blobs of a kind begin."""
        if name not in self._blob_starts:
            lengths = self.blob_numbers(name, "length")
            self._blob_starts[name] = np.concatenate(([0], lengths.cumsum(dtype=np.int64)))
        return self._blob_starts[name]

    def blobs(self, name: str) -> np.ndarray:
        """All blobs of a kind, one after another; verified one by one."""
        return self.column(name, verify=False) if name in self._described else np.zeros(0, np.uint8)

    def blob(self, name: str, row: int) -> bytes:
        """A blob of a page."""
        starts = self.blob_starts(name)
        data = self.blobs(name)[starts[row] : starts[row + 1]].tobytes()
        if zlib.crc32(data) != int(self.blob_numbers(name, "checksum")[row]):
            owner = int(self.document[row])
            raise self.fault(f"the {name} of page {self.page[row]} does not match its checksum", [owner])
        return data
