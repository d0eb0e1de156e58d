"""A segment: an immutable file of pages, every byte of it under a checksum.

Columns lie one after another, each filled up to 64 bytes and under a checksum of its own; a footer names them, and
the log keeps the checksum of the footer. `codes` and `scales` hold all vectors of all pages below each other; blobs
have a length and a checksum a page, so that one can be read without the others.
"""

from __future__ import annotations

import json
import mmap
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.errors import DamagedError
from anchorfold.index.coding import Coding
from anchorfold.index.store.catalogue import FileEntry
from anchorfold.index.store.durable import write_synced

ALIGNMENT = 64
TAIL = struct.Struct("<II8s")  # length and checksum of the footer
MAGIC = b"AFOLDSG2"
NUMBERS = ("document", "page", "full", "kept")  # a page: whose it is, which, vectors before and after
BLOBS = ("provenance", "thumbnail", "problem")
SMALL = 1 << 20  # bytes of a file that is read rather than mapped: that takes no descriptor
Fault = Callable[[str, Sequence[int]], DamagedError]  # from what is wrong, and numbers of the documents affected


@dataclass(frozen=True)
class Column:
    """An array of a file to be written, in pieces: what they hold together is `(rows, *shape)` of `dtype`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[np.ndarray]


def array_column(name: str, array: np.ndarray) -> Column:
    """A column that is at hand whole."""
    return Column(name, array.dtype.str, array.shape, [array])


def blob_columns(name: str, blobs: Sequence[bytes]) -> list[Column]:
    """The columns of blobs that are at hand."""
    return [
        array_column(f"{name}.length", np.array([len(b) for b in blobs], np.uint32)),
        array_column(f"{name}.checksum", np.array([zlib.crc32(b) for b in blobs], np.uint32)),
        array_column(name, np.frombuffer(b"".join(blobs), np.uint8)),
    ]


def write_columns(path: Path, rows: int, columns: Iterable[Column]) -> FileEntry:
    """Write a file of columns to the disk; nothing names it yet."""
    described: dict[str, Any] = {}
    written = 0

    def parts() -> Iterator[bytes | memoryview]:
        nonlocal written
        for column in columns:
            start, checksum = written, 0
            for piece in column.pieces:
                data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
                checksum = zlib.crc32(data, checksum)
                written += len(data)
                yield data
            filling = bytes(-written % ALIGNMENT)
            written += len(filling)
            yield filling
            described[column.name] = [column.dtype, list(column.shape), start, zlib.crc32(filling, checksum)]
        footer = json.dumps({"rows": rows, "columns": described}, separators=(",", ":")).encode()
        checksum = zlib.crc32(footer)
        described[""] = checksum
        written += len(footer) + TAIL.size
        yield footer
        yield TAIL.pack(len(footer), checksum, MAGIC)

    write_synced(path, parts())
    return FileEntry(rows, written, described[""])


class ColumnFile:
    """An open file of columns. Each is verified when it is first used.

    Args:
        path: the file.
        entry: what the log says of it.
        fault: makes the error for a file that is not what was written.
    """

    def __init__(self, path: Path, entry: FileEntry, fault: Fault) -> None:
        self.path, self.entry, self._fault = path, entry, fault
        self._lock = threading.Lock()
        self._verified: dict[str, np.ndarray] = {}
        self._bytes = _contents(path)
        self._described = self._footer()

    def fault(self, what: str, documents: Sequence[int] = ()) -> DamagedError:
        """The error for something wrong in this file."""
        return self._fault(f"{self.path.name}: {what}", documents)

    def _footer(self) -> Mapping[str, Any]:
        if len(self._bytes) != self.entry.bytes:
            raise self.fault(f"it has {len(self._bytes)} bytes instead of {self.entry.bytes}")
        length, checksum, magic = TAIL.unpack(self._bytes[-TAIL.size :].data)
        footer = self._bytes[-TAIL.size - length : -TAIL.size].tobytes() if length <= len(self._bytes) else b""
        if magic != MAGIC or checksum != self.entry.checksum or zlib.crc32(footer) != checksum:
            raise self.fault("its footer does not match its checksum")
        described: Mapping[str, Any] = json.loads(footer)["columns"]
        return described

    def names(self) -> list[str]:
        """Its columns."""
        return list(self._described)

    def column(self, name: str, verify: bool = True) -> np.ndarray:
        """A column as an array; blobs are verified one by one instead."""
        with self._lock:
            if name in self._verified:
                return self._verified[name]
        dtype, shape, start, checksum = self._described[name]
        length = int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))
        end = start + length
        if verify and zlib.crc32(self._bytes[start : end + -end % ALIGNMENT].data) != checksum:
            raise self.fault(f"its {name} do not match their checksum", self._owners(name))
        array: np.ndarray = self._bytes[start:end].view(np.dtype(dtype)).reshape(shape)
        if verify:
            with self._lock:
                self._verified[name] = array
        return array

    def _owners(self, name: str) -> Sequence[int]:
        return ()


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

    def rows_of(self, row: int) -> slice:
        """Where the vectors of a page are."""
        return slice(self.starts[row], self.starts[row + 1])

    def vectors(self, row: int, coding: Coding) -> np.ndarray:
        """`(m, d)` float32 vectors of a page."""
        rows = self.rows_of(row)
        return coding.decode(self.codes[rows], self.scales[rows])

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


def _contents(path: Path) -> np.ndarray:
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        if size <= SMALL:
            return np.frombuffer(bytearray(file.read()), np.uint8)
        # torch wants arrays that it might write to; copy-on-write keeps the file safe.
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
