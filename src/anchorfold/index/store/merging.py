"""Merging of small vector files: a page is copied a few times, and rows of removed documents are dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.index.store.column_file import FileColumn, FileEntry, array_column, write_columns
from anchorfold.index.store.records import DocumentVersion
from anchorfold.index.store.segment import NUMBERS, Segment, document_column

TIER = 8  # files of similar size that are merged into one
SMALLEST = 1 << 16  # bytes: smaller files count as this large
LARGEST = 1 << 28  # bytes of a file that is not merged any more
GARBAGE = 0.5  # share of unused rows above which a file is rewritten
CHUNK = 1024  # pages copied at a time


def tiers_to_merge(entries: Mapping[int, FileEntry], tier: int = TIER) -> list[list[int]]:
    """Groups of files of similar size that should become one, smallest first."""
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


def with_garbage(segments: Mapping[int, Segment], needed: np.ndarray) -> list[int]:
    """Files of which at least half of the rows belong to versions that are not `needed` (bool per version id)."""
    return [n for n, segment in segments.items() if needed[segment.version].sum() <= (1 - GARBAGE) * len(segment)]


def write_rows(
    path: Path,
    members: Sequence[Segment],
    chosen: Sequence[np.ndarray],
    documents: Mapping[int, DocumentVersion],
    header: Mapping[str, Any],
) -> FileEntry | None:
    """Write some rows of each file into a new one, pages with few vectors first; None if no rows are chosen."""
    owner = np.repeat(np.arange(len(members)), [len(rows) for rows in chosen])
    rows = np.concatenate(chosen) if len(chosen) else np.zeros(0, np.int64)
    if not len(rows):
        return None
    kept = np.concatenate([segment.kept[some] for segment, some in zip(members, chosen, strict=True)])
    order = np.argsort(kept, kind="stable")
    return write_columns(path, len(rows), _columns(members, owner[order], rows[order], documents), header)


def _columns(
    members: Sequence[Segment], owner: np.ndarray, rows: np.ndarray, documents: Mapping[int, DocumentVersion]
) -> Iterator[FileColumn]:
    def gather(name: str, verify: bool = True) -> np.ndarray:
        """One number per row."""
        values = np.empty(len(rows), np.uint32)
        for number, segment in enumerate(members):
            mine = owner == number
            values[mine] = segment.column(name, verify)[rows[mine]]
        return values

    def concatenate(arrays: list[np.ndarray], starts: list[np.ndarray]) -> Iterator[np.ndarray]:
        """The parts of arrays that belong to each row, some rows at a time."""
        for first, last in pairwise([*range(0, len(rows), CHUNK), len(rows)]):
            places = zip(owner[first:last], rows[first:last], strict=True)
            yield np.concatenate([arrays[o][starts[o][r] : starts[o][r + 1]] for o, r in places])

    numbers = {name: gather(name) for name in NUMBERS}
    for name, values in numbers.items():
        yield array_column(name, values)
    vectors = int(numbers["kept"].sum(dtype=np.int64))
    starts = [segment.starts for segment in members]
    codes, scales = ([segment.column(name, verify=False) for segment in members] for name in ("codes", "scales"))
    yield FileColumn("codes", codes[0].dtype.str, (vectors, codes[0].shape[1]), concatenate(codes, starts), long=True)
    if any(map(len, scales)):
        yield FileColumn("scales", scales[0].dtype.str, (vectors,), concatenate(scales, starts), long=True)
    else:
        yield array_column("scales", scales[0][:0], long=True)
    lengths = gather("provenance.length")
    yield array_column("provenance.length", lengths)
    # Each blob keeps its checksum: one that is damaged stays recognisable.
    yield array_column("provenance.checksum", gather("provenance.checksum", verify=False))
    bounds = [segment.blob_starts for segment in members]
    blobs = [segment.column("provenance", verify=False) for segment in members]
    yield FileColumn("provenance", "|u1", (int(lengths.sum(dtype=np.int64)),), concatenate(blobs, bounds))
    used = np.unique(numbers["version"]).tolist()
    yield document_column(documents[version] for version in used if version in documents)
