"""A vector file: the vectors of some pages, where they come from, and enough to rebuild the index from it.

Per page it stores the version of the document, the page number, the number of vectors before and after compression, and
the provenance; `codes` and `scales` contain all vectors. `documents` describes the documents of these pages, and the
footer contains the index id and the settings.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.errors import DamagedError, MismatchError
from anchorfold.index.coding import Coding
from anchorfold.index.store.column_file import ColumnFile, FileColumn, FileEntry, array_column, blob_columns
from anchorfold.index.store.faults import storage_errors
from anchorfold.index.store.provenance import pack
from anchorfold.index.store.records import DocumentVersion, PageRow
from anchorfold.index.store.schema import PAGE_BITS, VECTORS
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.threads import ForkSafeLock

NUMBERS = ("version", "page", "full", "kept")  # per page: version id, page number, vectors before and after


def segment_path(folder: Path, number: int) -> Path:
    """The path of a vector file."""
    return folder / VECTORS / f"{number:08}.seg"


class Segment(ColumnFile):
    """An open vector file: `version`, `page`, `full` and `kept` `(n,)`, and the first vector of each page."""

    def __init__(self, path: Path, entry: FileEntry | None = None) -> None:
        super().__init__(path, entry)
        self.version, self.page, self.full, self.kept = (self.column(name) for name in NUMBERS)
        self.starts = np.concatenate(([0], self.kept.cumsum(dtype=np.int64)))
        self.blob_starts = np.concatenate(([0], self.column("provenance.length").cumsum(dtype=np.int64)))

    def __len__(self) -> int:
        return len(self.version)

    @property
    def codes(self) -> np.ndarray:
        """`(V, row_bytes)` uint8, all vectors."""
        return self.column("codes")

    @property
    def scales(self) -> np.ndarray:
        """`(V,)` float16; empty where vectors are floats."""
        return self.column("scales")

    def rows_of(self, row: int) -> slice:
        """The vectors of a page."""
        return slice(int(self.starts[row]), int(self.starts[row + 1]))

    def coded(self, rows: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Codes and scales of some vectors; the others are not read."""
        scales = self.rows("scales", rows) if len(self._array("scales")) else self.scales
        return self.rows("codes", rows), scales

    def vectors(self, row: int, coding: Coding) -> np.ndarray:
        """`(m, d)` float32 vectors of a page."""
        return coding.decode(*self.coded(self.rows_of(row)))

    def provenance(self, row: int) -> bytes:
        """The packed provenance of a page."""
        data = self.column("provenance", verify=False)[self.blob_starts[row] : self.blob_starts[row + 1]].tobytes()
        if zlib.crc32(data) != int(self.column("provenance.checksum", verify=False)[row]):
            raise self.fault(f"the provenance of page {self.page[row]} does not match its checksum")
        return data

    def documents(self) -> dict[int, dict[str, Any]]:
        """Descriptions of the documents by version id, as they were when the file was written."""
        stored = json.loads(zlib.decompress(self.column("documents").tobytes()))
        return {int(version): description for version, description in stored.items()}

    def intact(self) -> np.ndarray:
        """`(n,)` true for pages whose vectors and provenance match their checksums."""
        try:
            whole = np.ones(len(self), bool)
            for name in ("codes", "scales"):
                array = self._array(name)
                if len(array):
                    size = array.nbytes // len(array)
                    whole &= self.intact_bytes(name, self.starts[:-1] * size, self.starts[1:] * size)
        except DamagedError:  # the block checksums themselves
            return np.zeros(len(self), bool)
        for row in range(len(self)):
            try:
                self.provenance(row)
            except DamagedError:
                whole[row] = False
        return whole

    def page_ids(self) -> list[int]:
        """The page id of each row."""
        identities: list[int] = (self.version.astype(np.int64) << PAGE_BITS | self.page.astype(np.int64)).tolist()
        return identities


def file_header(index_id: str, settings: IndexSettings) -> dict[str, Any]:
    """The header of a vector file."""
    return {"index_id": index_id, "settings": asdict(settings)}


def document_column(documents: Iterable[DocumentVersion]) -> FileColumn:
    """Descriptions of documents for `Segment.documents`."""
    described = {
        d.id: {
            "document_id": d.document_id, "path": d.source, "name": d.name, "public_name": d.public_name,
            "digest": d.digest, "size": d.size, "modified": d.modified, "pages": d.pages,
            "file_metadata": dict(d.file_metadata),
        }
        for d in documents
    }  # fmt: skip
    packed = zlib.compress(json.dumps(described, separators=(",", ":")).encode(), 6)
    return array_column("documents", np.frombuffer(packed, np.uint8))


def page_columns(
    rows: Sequence[PageRow], versions: Sequence[int], documents: Mapping[int, DocumentVersion], settings: IndexSettings
) -> list[FileColumn]:
    """The columns of a vector file with these pages, pages with few vectors first.

    Args:
        rows: the pages.
        versions: the version id of each.
        documents: the documents that they belong to, by version id.
        settings: of the index.
    """
    lengths = [0 if row.encoded is None else len(row.encoded) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (lengths[i], i))
    pages = [rows[i].encoded for i in order]
    numbers = {
        "version": [versions[i] for i in order],
        "page": [rows[i].page for i in order],
        "full": [0 if p is None else p.full for p in pages],
        "kept": [lengths[i] for i in order],
    }
    vectors = [np.zeros((0, settings.dim), np.float32), *(p.vectors.numpy() for p in pages if p is not None)]
    for array in vectors:
        if array.shape[1] != settings.dim:
            raise MismatchError(
                f"the index has vectors of dimension {settings.dim}, the model returns {array.shape[1]}."
            )
    codes, scales = settings.coding.encode(np.concatenate(vectors).astype(np.float32, copy=False))
    return [
        *(array_column(name, np.array(numbers[name], np.uint32)) for name in NUMBERS),
        array_column("codes", codes, long=True),
        array_column("scales", scales, long=True),
        *blob_columns("provenance", [pack(p) if p is not None and settings.provenance else b"" for p in pages]),
        document_column(documents.values()),
    ]


class OpenSegments:
    """The vector files that this process has open. Thread-safe.

    A file is identified by its registry entry and its inode: numbers are reused after a restored backup.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = ForkSafeLock()
        self._open: dict[tuple[object, ...], Segment] = {}

    def get(self, entries: Mapping[int, FileEntry]) -> dict[int, Segment]:
        """Open segments of a version by number; files that it does not name are closed when nothing uses them."""
        with self._lock, storage_errors(self.folder):
            opened: dict[tuple[object, ...], Segment] = {}
            segments: dict[int, Segment] = {}
            for number, entry in entries.items():
                path = segment_path(self.folder, number)
                status = os.stat(path)
                key = (number, entry, status.st_ino, status.st_mtime_ns)
                known = self._open.get(key)
                opened[key] = segments[number] = Segment(path, entry) if known is None else known
            self._open = opened
            return segments
