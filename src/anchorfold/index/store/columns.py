"""A file of columns: immutable, every byte of it under a checksum.

Columns lie one after another, each filled up to 64 bytes; a footer names them with their checksums, and the log keeps
the checksum of the footer. A long column is checked in blocks, so that some of its rows can be read without the others:
the checksums of its blocks follow it, and the footer has the checksum of these.
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
from anchorfold.index.store.catalogue import FileEntry
from anchorfold.index.store.durable import write_synced

ALIGNMENT = 64
BLOCK = 1 << 16  # bytes of a long column under one checksum
TAIL = struct.Struct("<II8s")  # length and checksum of the footer
MAGIC = b"AFOLDSG2"
SMALL = 1 << 20  # bytes of a file that is read rather than mapped: that takes no descriptor
Fault = Callable[[str, Sequence[int]], DamagedError]  # from what is wrong, and numbers of the documents affected


@dataclass(frozen=True)
class Column:
    """An array of a file to be written, in pieces: what they hold together is `shape` of `dtype`; `long` for blocks."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: Iterable[np.ndarray]
    long: bool = False


def array_column(name: str, array: np.ndarray, long: bool = False) -> Column:
    """A column that is at hand whole."""
    return Column(name, array.dtype.str, array.shape, [array], long)


def blob_columns(name: str, blobs: Sequence[bytes]) -> list[Column]:
    """The columns of blobs that are at hand."""
    return [
        array_column(f"{name}.length", np.array([len(b) for b in blobs], np.uint32)),
        array_column(f"{name}.checksum", np.array([zlib.crc32(b) for b in blobs], np.uint32)),
        array_column(name, np.frombuffer(b"".join(blobs), np.uint8)),
    ]


class _Blocks:
    """The checksums of the blocks of what is written piece by piece."""

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
        return np.array(self.checksums, "<u4").tobytes()


def write_columns(path: Path, rows: int, columns: Iterable[Column]) -> FileEntry:
    """Write a file of columns to the disk; nothing names it yet."""
    described: dict[str, Any] = {}
    written = footer_checksum = 0

    def parts() -> Iterator[bytes | memoryview]:
        nonlocal written, footer_checksum
        for column in columns:
            start, checksum, blocks = written, 0, _Blocks()
            for piece in column.pieces:
                data = np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data
                if column.long:
                    blocks.add(data)
                else:
                    checksum = zlib.crc32(data, checksum)
                written += len(data)
                yield data
            filling = bytes(-written % ALIGNMENT)
            written += len(filling)
            yield filling
            description = [column.dtype, list(column.shape), start]
            if column.long:
                blocks.add(memoryview(filling))
                checksums = blocks.data()
                checksums += bytes(-len(checksums) % ALIGNMENT)
                written += len(checksums)
                yield checksums
                described[column.name] = [*description, zlib.crc32(checksums), len(blocks.checksums)]
            else:
                described[column.name] = [*description, zlib.crc32(filling, checksum)]
        footer = json.dumps({"rows": rows, "columns": described}, separators=(",", ":")).encode()
        footer_checksum = zlib.crc32(footer)
        written += len(footer) + TAIL.size
        yield footer
        yield TAIL.pack(len(footer), footer_checksum, MAGIC)

    write_synced(path, parts())
    return FileEntry(rows, written, footer_checksum)


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
        self._blocks: dict[
            str, tuple[np.ndarray, np.ndarray]
        ] = {}  # of long columns: checksums, and which are verified
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
        array = self._array(name)
        if verify:
            start, checksum, *blocks = self._described[name][2:]
            end = start + array.nbytes
            if blocks:
                self._verify_blocks(name, np.arange(blocks[0]))
            elif zlib.crc32(self._bytes[start : end + -end % ALIGNMENT].data) != checksum:
                raise self._mismatch(name)
            with self._lock:
                self._verified[name] = array
        return array

    def rows(self, name: str, rows: slice | np.ndarray) -> np.ndarray:
        """Some rows of a column; of a long one only the blocks that they lie in are verified."""
        if name in self._verified or len(self._described[name]) == 4 or not self._described[name][1][0]:
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
        dtype, shape, start, *_ = self._described[name]
        end = start + int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64))
        array: np.ndarray = self._bytes[start:end].view(np.dtype(dtype)).reshape(shape)
        return array

    def _verify_blocks(self, name: str, blocks: np.ndarray) -> None:
        """Verify those blocks of a long column that were not yet; threads may do it twice, and nothing comes of it."""
        _, verified = self._block_checksums(name)
        for block in blocks[~verified[blocks]].tolist():
            if not self._block_matches(name, block):
                raise self._mismatch(name)
            verified[block] = True

    def _block_checksums(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """What the blocks of a long column should have, and which were verified."""
        if name not in self._blocks:
            _, _, _, checksum, count = self._described[name]
            end = self._end(name)
            stored = self._bytes[end : end + 4 * count + -4 * count % ALIGNMENT]
            if zlib.crc32(stored.data) != checksum:
                raise self._mismatch(name)
            self._blocks[name] = stored[: 4 * count].view("<u4"), np.zeros(count, bool)
        return self._blocks[name]

    def _block_matches(self, name: str, block: int) -> bool:
        first = self._described[name][2] + block * BLOCK
        data = self._bytes[first : min(first + BLOCK, self._end(name))].data
        return zlib.crc32(data) == int(self._block_checksums(name)[0][block])

    def _end(self, name: str) -> int:
        """Where a column and what fills it up end."""
        end: int = self._described[name][2] + self._array(name).nbytes
        return end + -end % ALIGNMENT

    def intact_bytes(self, name: str, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
        """`(n,)` true where the bytes from `starts` to `stops (n,)` of a column are in blocks as they were written."""
        if len(self._described[name]) == 4:
            self.column(name)  # one checksum for all: raises
            return np.ones(len(starts), bool)
        count = self._described[name][4]
        broken = np.array([not self._block_matches(name, block) for block in range(count)], np.int64)
        before = np.concatenate(([0], broken.cumsum()))
        whole: np.ndarray = (before[-(-stops // BLOCK)] == before[starts // BLOCK]) | (starts == stops)
        return whole

    def _mismatch(self, name: str) -> DamagedError:
        return self.fault(f"its {name} do not match their checksum", self._owners(name))

    def _owners(self, name: str) -> Sequence[int]:
        return ()


def _contents(path: Path) -> np.ndarray:
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        if size <= SMALL:
            return np.frombuffer(bytearray(file.read()), np.uint8)
        # torch wants arrays that it might write to; copy-on-write keeps the file safe.
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
