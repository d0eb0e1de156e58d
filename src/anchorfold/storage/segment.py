"""Vector files: the vectors of some pages, their provenance, and enough to rebuild the index from them.

Per page a file stores the version of the document, the page number, the number of vectors before and after compression,
and checksums of its vectors and its provenance. `codes` and `scales` contain all vectors, pages with few vectors first.
`documents` describes the documents, and the footer contains the index id and the settings. All columns but `codes`,
`scales` and `provenance` are stored twice, so that a damaged byte affects one page.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.errors import DamagedError, MismatchError
from anchorfold.quantization.codec import Coding
from anchorfold.storage.column_file import ColumnFile, FileColumn, FileEntry, array_column, write_columns
from anchorfold.storage.file_errors import storage_errors
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.provenance import pack
from anchorfold.storage.records import DocumentVersion, PageRow
from anchorfold.storage.schema import PAGE_BITS, VECTORS
from anchorfold.storage.threads import ForkSafeLock

NUMBERS = ("version", "page", "full", "kept")  # per page: version id, page number, vectors before and after
CHECKSUMS = ("vectors.checksum", "provenance.checksum")
CHUNK = 1024  # pages copied at a time
TIER = 8  # files of similar size that are merged into one
SMALLEST = 1 << 16  # bytes: smaller files count as this large
LARGEST = 1 << 28  # bytes of a file that is not merged any more
GARBAGE = 0.5  # share of unused rows above which a file is rewritten


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of a vector file."""
    return folder / VECTORS / f"{number:08}.seg"


class Segment(ColumnFile):
    """An open vector file: `version`, `page`, `full` and `kept` `(n,)`, and the first vector of each page."""

    def __init__(self, path: Path, entry: FileEntry | None = None) -> None:
        super().__init__(path, entry)
        self.version, self.page, self.full, self.kept = (self.column(name) for name in NUMBERS)
        self.starts = np.concatenate(([0], self.kept.cumsum(dtype=np.int64)))
        self.blob_starts = np.concatenate(([0], self.column("provenance.length").cumsum(dtype=np.int64)))
        self._intact = np.zeros(len(self), bool)  # pages whose vectors were verified

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
        """Return the vectors of a page."""
        return slice(int(self.starts[row]), int(self.starts[row + 1]))

    def coded(self, rows: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return codes and scales of some vectors; only the pages that contain them are verified."""
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(int(self.starts[-1]))
            first, last = np.searchsorted(self.starts, (start, stop - 1), "right")
            pages = np.arange(first - 1, last)
        else:
            pages = np.unique(np.searchsorted(self.starts, rows, "right") - 1)
        codes, scales = self._verify_pages(pages)
        return codes[rows], scales[rows] if len(scales) else scales

    def verified(self, pages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return all codes and scales; the given pages are verified, or whole columns if they are most of the file."""
        return (self.codes, self.scales) if 2 * len(pages) > len(self) else self._verify_pages(pages)

    def _verify_pages(self, pages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if not {"codes", "scales"} <= self._verified:
            for page in pages[~self._intact[pages]].tolist():
                if not self._vectors_match(page):
                    raise self.fault(f"the vectors of page {self.page[page]} do not match their checksum")
                self._intact[page] = True
        return self.column("codes", verify=False), self.column("scales", verify=False)

    def _vectors_match(self, row: int) -> bool:
        vectors = self.rows_of(row)
        codes, scales = (self.column(name, verify=False)[vectors] for name in ("codes", "scales"))
        return bool(vectors_checksum(codes, scales) == self.column(CHECKSUMS[0])[row])

    def vectors(self, row: int, coding: Coding) -> np.ndarray:
        """Return `(m, d)` float32 vectors of a page."""
        return coding.decode(*self.coded(self.rows_of(row)))

    def provenance(self, row: int) -> bytes:
        """Return the packed provenance of a page."""
        data = self.column("provenance", verify=False)[self.blob_starts[row] : self.blob_starts[row + 1]].tobytes()
        if zlib.crc32(data) != self.column(CHECKSUMS[1])[row]:
            raise self.fault(f"the provenance of page {self.page[row]} does not match its checksum")
        return data

    def documents(self) -> dict[int, DocumentVersion]:
        """Return the versions of documents by id as they were when the file was written, without metadata of users."""
        stored = json.loads(zlib.decompress(self.column("documents").tobytes()))
        return {int(version): DocumentVersion(int(version), **known) for version, known in stored.items()}

    def intact(self) -> np.ndarray:
        """Return `(n,)` true for pages whose vectors and provenance match their checksums."""
        whole = np.zeros(len(self), bool)
        for row in range(len(self)):
            try:
                self.provenance(row)
                whole[row] = self._vectors_match(row)
            except DamagedError:
                whole[row] = False
        return whole

    def page_ids(self) -> list[int]:
        """Return the page id of each row."""
        identities: list[int] = (self.version.astype(np.int64) << PAGE_BITS | self.page.astype(np.int64)).tolist()
        return identities


def vectors_checksum(codes: np.ndarray, scales: np.ndarray) -> int:
    """CRC-32 of the vectors of a page."""
    return zlib.crc32(scales.data, zlib.crc32(codes.data))


def file_header(index_id: str, settings: IndexSettings) -> dict[str, Any]:
    """Return the header of a vector file."""
    return {"index_id": index_id, "settings": asdict(settings)}


def document_column(documents: Iterable[DocumentVersion]) -> FileColumn:
    """Return descriptions of documents for `Segment.documents`."""
    described = {}
    for document in documents:
        description = {**asdict(document), "metadata": {}}
        described[description.pop("id")] = description
    packed = zlib.compress(json.dumps(described, separators=(",", ":")).encode(), 6)
    return array_column("documents", np.frombuffer(packed, np.uint8), twice=True)


def page_columns(
    rows: Sequence[PageRow], versions: Sequence[int], documents: Mapping[int, DocumentVersion], settings: IndexSettings
) -> Iterator[FileColumn]:
    """The columns of a vector file with these pages.

    Args:
        rows: the pages.
        versions: the version id of each.
        documents: the documents that they belong to, by version id.
        settings: of the index.
    """
    lengths = [0 if row.encoded is None else len(row.encoded) for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (lengths[i], i))
    pages = [rows[i].encoded for i in order]
    arrays = [np.zeros((0, settings.dim), np.float32), *(p.vectors.numpy() for p in pages if p is not None)]
    for array in arrays:
        if array.shape[1] != settings.dim:
            raise MismatchError(
                f"the index has vectors of dimension {settings.dim}, the model returns {array.shape[1]}."
            )
    codes, scales = settings.coding.encode(np.concatenate(arrays).astype(np.float32, copy=False))
    numbers = ([versions[i] for i in order], [rows[i].page for i in order],
               [0 if p is None else p.full for p in pages], [lengths[i] for i in order])  # fmt: skip
    blobs = [pack(p) if p is not None and settings.provenance else b"" for p in pages]
    return array_columns(numbers, codes, scales, blobs, documents.values())


def array_columns(
    numbers: Sequence[Sequence[int] | np.ndarray],
    codes: np.ndarray,
    scales: np.ndarray,
    provenance: Sequence[bytes],
    documents: Iterable[DocumentVersion],
) -> Iterator[FileColumn]:
    """The columns of a vector file from arrays; `numbers` are those of `NUMBERS`, ascending by vectors per page."""
    for name, values in zip(NUMBERS, numbers, strict=True):
        yield array_column(name, np.asarray(values, np.uint32), twice=True)
    edges = np.concatenate(([0], np.asarray(numbers[3], np.int64).cumsum())).tolist()
    checksums = [vectors_checksum(codes[a:b], scales[a:b]) for a, b in pairwise(edges)]
    yield array_column(CHECKSUMS[0], np.array(checksums, np.uint32), twice=True)
    yield array_column("codes", codes)
    yield array_column("scales", scales)
    yield array_column("provenance.length", np.array([len(blob) for blob in provenance], np.uint32), twice=True)
    yield array_column(CHECKSUMS[1], np.array([zlib.crc32(blob) for blob in provenance], np.uint32), twice=True)
    yield array_column("provenance", np.frombuffer(b"".join(provenance), np.uint8))
    yield document_column(documents)


def tiers_to_merge(entries: Mapping[int, FileEntry], tier: int = TIER) -> list[list[int]]:
    """Return groups of files of similar size that should become one, smallest first."""
    tiers: dict[int, list[int]] = {}
    for number, entry in sorted(entries.items()):
        level, limit = 0, SMALLEST
        while entry.bytes > limit:
            level, limit = level + 1, limit * tier
        if entry.bytes < LARGEST / tier:
            tiers.setdefault(level, []).append(number)
    return [
        members[i : i + tier] for _, members in sorted(tiers.items()) for i in range(0, len(members) - tier + 1, tier)
    ]


def copy_rows(
    path: Path,
    members: Sequence[Segment],
    chosen: Sequence[np.ndarray],
    documents: Iterable[DocumentVersion],
    header: Mapping[str, Any],
) -> FileEntry:
    """Write some rows of each file into a new one, pages with few vectors first."""
    kept = np.concatenate([segment.kept[rows] for segment, rows in zip(members, chosen, strict=True)])
    order = np.argsort(kept, kind="stable")
    owner = np.repeat(np.arange(len(members)), [len(rows) for rows in chosen])[order]
    rows = np.concatenate(chosen)[order]

    def gather(name: str) -> FileColumn:
        """Return one number per row. Checksums are copied, so that what is damaged stays recognisable."""
        values = np.empty(len(rows), np.uint32)
        for number, segment in enumerate(members):
            values[owner == number] = segment.column(name)[rows[owner == number]]
        return array_column(name, values, twice=True)

    def concatenate(name: str, starts: Callable[[Segment], np.ndarray]) -> FileColumn:
        """Return the parts of arrays that belong to each row, some rows at a time."""
        arrays, edges = [s.column(name, verify=False) for s in members], [starts(s) for s in members]

        def pieces() -> Iterator[np.ndarray]:
            for first, last in pairwise([*range(0, len(rows), CHUNK), len(rows)]):
                at = zip(owner[first:last].tolist(), rows[first:last].tolist(), strict=True)
                yield np.concatenate([arrays[o][edges[o][r] : edges[o][r + 1]] for o, r in at])

        empty = not any(map(len, arrays))
        total = sum(int(np.diff(e)[r].sum()) for e, r in zip(edges, chosen, strict=True))
        shape = (0 if empty else total, *arrays[0].shape[1:])
        return FileColumn(name, arrays[0].dtype.str, shape, () if empty else pieces())

    columns = [
        *map(gather, (*NUMBERS, *CHECKSUMS, "provenance.length")),
        *(concatenate(name, lambda segment: segment.starts) for name in ("codes", "scales")),
        concatenate("provenance", lambda segment: segment.blob_starts),
        document_column(documents),
    ]
    return write_columns(path, len(rows), columns, header)


class OpenSegments:
    """The vector files that this process has open. Thread-safe.

    A file is identified by its registry entry and its inode: numbers are reused after a restored backup.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = ForkSafeLock()
        self._open: dict[tuple[object, ...], Segment] = {}
        self.verified: object = None  # the newest commit whose documents were verified

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
