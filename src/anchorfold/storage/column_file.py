"""A file of named arrays: immutable, memory-mapped, every byte of it covered by a checksum.

Columns are stored one after another, each padded to 64 bytes. A JSON footer lists them with their checksums, and the
registry of the index stores the checksum of the footer. The footer and columns that other columns depend on are stored
twice: the copy is used where the first one is damaged.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.errors import DamagedError
from anchorfold.storage.file_errors import damaged, write_synced

ALIGNMENT = 64
TAIL = struct.Struct("<II8s")  # length and checksum of the footer
MAGIC = b"AFOLDSG5"
COPY = "copy of "
FOOTERS = 1 << 20  # maximum bytes of both footers
SMALL = 1 << 20  # bytes: smaller files are read instead of mapped, which needs no descriptor


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What the registry stores of a file: number of rows, bytes, and checksum of the footer."""

    rows: int
    bytes: int
    checksum: int


@dataclass(frozen=True)
class FileColumn:
    """An array to be written in pieces that together have `shape` and `dtype`, with `twice` also as a copy."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[np.ndarray]
    twice: bool = False


def array_column(name: str, array: np.ndarray, twice: bool = False) -> FileColumn:
    """Return a column from a whole array."""
    return FileColumn(name, array.dtype.str, array.shape, [array], twice)


def write_columns(path: Path, rows: int, columns: Iterable[FileColumn], header: Mapping[str, Any]) -> FileEntry:
    """Write and sync a file; `header` is stored as JSON in the footer."""
    directory: dict[str, Any] = {}
    written = footer_checksum = 0

    def parts() -> Iterator[bytes | memoryview]:
        nonlocal written, footer_checksum
        for column in _with_copies(columns):
            start, checksum = written, 0
            for piece in column.pieces:
                data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
                checksum = zlib.crc32(data, checksum)
                written += len(data)
                yield data
            padding = bytes(-written % ALIGNMENT)
            written += len(padding)
            yield padding
            directory[column.name] = [column.dtype, column.shape, start, zlib.crc32(padding, checksum)]
        footer = json.dumps({"rows": rows, "header": header, "columns": directory}, separators=(",", ":")).encode()
        footer_checksum = zlib.crc32(footer)
        for _ in range(2):
            written += len(footer) + TAIL.size
            yield footer
            yield TAIL.pack(len(footer), footer_checksum, MAGIC)

    write_synced(path, parts())
    return FileEntry(rows, written, footer_checksum)


def _with_copies(columns: Iterable[FileColumn]) -> Iterator[FileColumn]:
    copies = []
    for column in columns:
        yield column
        if column.twice:
            copies.append(replace(column, name=COPY + column.name))
    yield from copies


class ColumnFile:
    """An open file. Each column is verified when it is first used.

    Args:
        path: the file.
        entry: what the registry stores of it; None if the file is read without a registry.

    Raises:
        DamagedError: the file differs from what was written.
    """

    def __init__(self, path: Path, entry: FileEntry | None = None) -> None:
        self.path = path
        self._verified: set[str] = set()
        self._arrays: dict[str, np.ndarray] = {}
        self._bytes = _contents(path)
        try:
            footer, checksum = self._footer(len(self._bytes))
        except DamagedError:
            footer, checksum = self._footer(self._end_of_first_footer())
        self.entry = entry or FileEntry(footer["rows"], len(self._bytes), checksum)
        if (len(self._bytes), checksum) != (self.entry.bytes, self.entry.checksum):
            raise self.fault("it is not the file that the index registered")
        self.header: Mapping[str, Any] = footer["header"]
        self._directory: Mapping[str, Any] = footer["columns"]

    def fault(self, problem: str) -> DamagedError:
        """Return the error for damage in this file."""
        return damaged(self.path.parent.parent, f"{self.path.name}: {problem}")

    def _end_of_first_footer(self) -> int:
        tail = self._bytes[-FOOTERS:-1].tobytes()
        return max(0, len(self._bytes) - 1 - len(tail) + tail.rfind(MAGIC) + len(MAGIC))

    def _footer(self, end: int) -> tuple[dict[str, Any], int]:
        """Return a footer and its checksum, from the position after it."""
        if end < TAIL.size:
            raise self.fault("it is truncated")
        length, checksum, magic = TAIL.unpack(self._bytes[end - TAIL.size : end].data)
        stored = self._bytes[max(0, end - TAIL.size - length) : end - TAIL.size].tobytes()
        if magic != MAGIC or zlib.crc32(stored) != checksum:
            raise self.fault("its footer does not match its checksum")
        footer: dict[str, Any] = json.loads(stored)
        return footer, checksum

    def verify(self) -> None:
        """Raise DamagedError if any byte differs from what was written, also where a copy is intact."""
        self._footer(len(self._bytes))
        self._footer(self._end_of_first_footer())
        for name in self._directory:
            if not self._matches(name):
                raise self.fault(f"the column {name} does not match its checksum")

    def names(self) -> list[str]:
        """Return the names of its columns and of their copies."""
        return list(self._directory)

    def _matches(self, name: str) -> bool:
        dtype, shape, start, checksum = self._directory[name]
        end = start + _size(dtype, shape)
        return bool(zlib.crc32(self._bytes[start : end + -end % ALIGNMENT].data) == checksum)

    def column(self, name: str, verify: bool = True) -> np.ndarray:
        """Return a column; `verify=False` where the caller verifies the rows that it uses."""
        if verify and name not in self._verified:  # two threads may verify it twice without harm
            if not self._matches(name):
                if COPY + name in self._directory:
                    return self.column(COPY + name)
                raise self.fault(f"the column {name.removeprefix(COPY)} does not match its checksum")
            self._verified.add(name)
        if name not in self._arrays:
            dtype, shape, start, _ = self._directory[name]
            end = start + _size(dtype, shape)
            self._arrays[name] = self._bytes[start:end].view(np.dtype(dtype)).reshape(shape)
        return self._arrays[name]


def _size(dtype: str, shape: Sequence[int]) -> int:
    return int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))


def _contents(path: Path) -> np.ndarray:
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        if size <= SMALL:
            return np.frombuffer(bytearray(file.read()), np.uint8)
        # torch requires writable arrays; copy-on-write protects the file.
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
