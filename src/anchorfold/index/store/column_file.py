"""A file of named arrays: immutable, memory-mapped, every byte of it covered by a checksum.

Columns are stored one after another, each padded to 64 bytes. A JSON footer lists them with their checksums, and the
registry of the index stores the checksum of the footer. A long column is checked in blocks of 64 kB, so that some of
its rows can be read without the others: the checksums of its blocks follow it, and the footer has their checksum.
"""

from __future__ import annotations

import json
import mmap
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.errors import DamagedError
from anchorfold.index.store.durable import write_synced
from anchorfold.index.store.faults import damaged
from anchorfold.index.threads import ForkSafeLock

ALIGNMENT = 64
BLOCK = 1 << 16  # bytes of a long column covered by one checksum
TAIL = struct.Struct("<II8s")  # length and checksum of the footer
MAGIC = b"AFOLDSG3"
SMALL = 1 << 20  # bytes: smaller files are read instead of mapped, which needs no descriptor


@dataclass(frozen=True, slots=True)
class FileEntry:
    """What the registry stores of a file: number of rows, bytes, and checksum of the footer."""

    rows: int
    bytes: int
    checksum: int


@dataclass(frozen=True)
class FileColumn:
    """An array to be written in pieces that together have `shape` and `dtype`; `long` columns have block checksums."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[np.ndarray]
    long: bool = False


def array_column(name: str, array: np.ndarray, long: bool = False) -> FileColumn:
    """A column from a whole array."""
    return FileColumn(name, array.dtype.str, array.shape, [array], long)


def blob_columns(name: str, blobs: list[bytes]) -> list[FileColumn]:
    """Lengths, checksums and bytes of one blob per row."""
    return [
        array_column(f"{name}.length", np.array([len(b) for b in blobs], np.uint32)),
        array_column(f"{name}.checksum", np.array([zlib.crc32(b) for b in blobs], np.uint32)),
        array_column(name, np.frombuffer(b"".join(blobs), np.uint8)),
    ]


class _BlockChecksums:
    """Checksums of the blocks of data that is written piece by piece."""

    def __init__(self) -> None:
        self.checksums: list[int] = []
        self._room = 0

    def add(self, data: memoryview) -> None:
        at = 0
        while at < len(data):
            if not self._room:
                self.checksums.append(0)
                self._room = BLOCK
            part = data[at : at + self._room]
            self.checksums[-1] = zlib.crc32(part, self.checksums[-1])
            self._room -= len(part)
            at += len(part)

    def data(self) -> bytes:
        stored = np.array(self.checksums, "<u4").tobytes()
        return stored + bytes(-len(stored) % ALIGNMENT)


def write_columns(path: Path, rows: int, columns: Iterable[FileColumn], header: Mapping[str, Any]) -> FileEntry:
    """Write and sync a file; `header` is stored as JSON in the footer."""
    directory: dict[str, Any] = {}
    written = footer_checksum = 0

    def parts() -> Iterator[bytes | memoryview]:
        nonlocal written, footer_checksum
        for column in columns:
            start, checksum, blocks = written, 0, _BlockChecksums()
            for piece in column.pieces:
                data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
                if column.long:
                    blocks.add(data)
                else:
                    checksum = zlib.crc32(data, checksum)
                written += len(data)
                yield data
            padding = bytes(-written % ALIGNMENT)
            written += len(padding)
            yield padding
            entry = [column.dtype, list(column.shape), start]
            if column.long:
                blocks.add(memoryview(padding))
                checksums = blocks.data()
                written += len(checksums)
                yield checksums
                directory[column.name] = [*entry, zlib.crc32(checksums), len(blocks.checksums)]
            else:
                directory[column.name] = [*entry, zlib.crc32(padding, checksum)]
        footer = json.dumps({"rows": rows, "header": header, "columns": directory}, separators=(",", ":")).encode()
        footer_checksum = zlib.crc32(footer)
        written += len(footer) + TAIL.size
        yield footer
        yield TAIL.pack(len(footer), footer_checksum, MAGIC)

    write_synced(path, parts())
    return FileEntry(rows, written, footer_checksum)


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
        self._lock = ForkSafeLock()
        self._verified: dict[str, np.ndarray] = {}
        self._blocks: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # long columns: checksums, and which are verified
        self._bytes = _contents(path)
        footer, checksum = self._footer()
        self.entry = entry or FileEntry(footer["rows"], len(self._bytes), checksum)
        if (len(self._bytes), checksum) != (self.entry.bytes, self.entry.checksum):
            raise self.fault("it is not the file that the index registered")
        self.header: Mapping[str, Any] = footer["header"]
        self._directory: Mapping[str, Any] = footer["columns"]

    def fault(self, problem: str) -> DamagedError:
        """The error for damage in this file."""
        return damaged(self.path.parent.parent, f"{self.path.name}: {problem}")

    def _footer(self) -> tuple[dict[str, Any], int]:
        if len(self._bytes) < TAIL.size:
            raise self.fault("it is truncated")
        length, checksum, magic = TAIL.unpack(self._bytes[-TAIL.size :].data)
        stored = self._bytes[-TAIL.size - length : -TAIL.size].tobytes() if length <= len(self._bytes) else b""
        if magic != MAGIC or zlib.crc32(stored) != checksum:
            raise self.fault("its footer does not match its checksum")
        footer: dict[str, Any] = json.loads(stored)
        return footer, checksum

    def names(self) -> list[str]:
        """The names of its columns."""
        return list(self._directory)

    def column(self, name: str, verify: bool = True) -> np.ndarray:
        """A whole column; `verify=False` for blobs, which have their own checksums."""
        with self._lock:
            if name in self._verified:
                return self._verified[name]
        array = self._array(name)
        if verify:
            start, checksum, *blocks = self._directory[name][2:]
            end = start + array.nbytes
            if blocks:
                self._verify_blocks(name, np.arange(blocks[0]))
            elif zlib.crc32(self._bytes[start : end + -end % ALIGNMENT].data) != checksum:
                raise self._mismatch(name)
            with self._lock:
                self._verified[name] = array
        return array

    def rows(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        """Some rows of a column; of a long column only the blocks that contain them are verified."""
        if name in self._verified or len(self._directory[name]) == 4 or not self._directory[name][1][0]:
            return self.column(name)[rows]
        array = self._array(name)
        chosen = array[rows]
        if chosen.size:
            size = array.nbytes // len(array)
            if isinstance(rows, slice):
                first, last, _ = rows.indices(len(array))
                blocks = np.arange(first * size // BLOCK, (last * size - 1) // BLOCK + 1)
            else:
                starts = rows * size
                blocks = np.unique(np.concatenate([starts // BLOCK, (starts + size - 1) // BLOCK]))
            self._verify_blocks(name, blocks)
        return chosen

    def _array(self, name: str) -> np.ndarray:
        dtype, shape, start, *_ = self._directory[name]
        end = start + int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))
        array: np.ndarray = self._bytes[start:end].view(np.dtype(dtype)).reshape(shape)
        return array

    def _verify_blocks(self, name: str, blocks: np.ndarray) -> None:
        """Verify blocks that were not verified yet; two threads may do it twice without harm."""
        _, verified = self._block_checksums(name)
        for block in blocks[~verified[blocks]].tolist():
            if not self._block_matches(name, block):
                raise self._mismatch(name)
            verified[block] = True

    def _block_checksums(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Expected checksums of the blocks of a long column, and which blocks were verified."""
        if name not in self._blocks:
            *_, checksum, count = self._directory[name]
            stored = self._stored_checksums(name)
            if zlib.crc32(stored.data) != checksum:
                raise self._mismatch(name)
            self._blocks[name] = stored[: 4 * count].view("<u4"), np.zeros(count, bool)
        return self._blocks[name]

    def _stored_checksums(self, name: str) -> np.ndarray:
        """The bytes of the checksums of the blocks of a long column, not verified."""
        end, count = self._end(name), self._directory[name][4]
        return self._bytes[end : end + 4 * count + -4 * count % ALIGNMENT]

    def _block_matches(self, name: str, block: int) -> bool:
        first = self._directory[name][2] + block * BLOCK
        data = self._bytes[first : min(first + BLOCK, self._end(name))].data
        expected: int = self._stored_checksums(name)[4 * block : 4 * block + 4].view("<u4")[0]
        return zlib.crc32(data) == expected

    def _end(self, name: str) -> int:
        """Where a column and its padding end."""
        end: int = self._directory[name][2] + self._array(name).nbytes
        return end + -end % ALIGNMENT

    def intact_bytes(self, name: str, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """`(n,)` true where the bytes from `starts` to `stops (n,)` of a long column are in intact blocks."""
        if len(self._directory[name]) == 4:
            self.column(name)  # a single checksum: raises
            return np.ones(len(starts), bool)
        broken = [not self._block_matches(name, block) for block in range(self._directory[name][4])]
        before = np.concatenate(([0], np.array(broken, np.int64).cumsum()))
        whole: np.ndarray = (before[-(-stops // BLOCK)] == before[starts // BLOCK]) | (starts == stops)
        return whole

    def _mismatch(self, name: str) -> DamagedError:
        return self.fault(f"the column {name} does not match its checksum")


def _contents(path: Path) -> np.ndarray:
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        if size <= SMALL:
            return np.frombuffer(bytearray(file.read()), np.uint8)
        # torch requires writable arrays; copy-on-write protects the file.
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
