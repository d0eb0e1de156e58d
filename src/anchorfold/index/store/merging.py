"""Many small segments into few: a page is copied a few times in its life, and rows of removed documents go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from anchorfold.index.store.catalogue import FileEntry, State
from anchorfold.index.store.columns import Column, array_column, write_columns
from anchorfold.index.store.segment import BLOBS, NUMBERS, Segment

TIER = 8  # segments of about a size that are merged into one
SMALLEST = 1 << 16  # bytes: smaller ones count as that large
LARGEST = 1 << 28  # bytes of a segment that is merged no more
GARBAGE = 0.5  # share of rows that nobody needs: then a segment is rewritten
CHUNK = 1024  # pages that are copied at a time


def tiers_to_merge(entries: Mapping[int, FileEntry], tier: int = TIER) -> list[list[int]]:
    """Numbers of segments of about a size that should become one, the smallest first."""
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


def with_garbage(segments: Mapping[int, Segment], needed: np.ndarray) -> list[list[int]]:
    """Numbers of segments to rewrite, each alone; `needed` as `numbers_in_use` gives it."""
    return [[n] for n, segment in segments.items() if needed[segment.document].sum() <= (1 - GARBAGE) * len(segment)]


def numbers_in_use(state: State) -> np.ndarray:
    """`(numbers,)` true for documents that the log knows, staged ones included."""
    needed = np.zeros(state.next_document, bool)
    needed[list(state.documents)] = True
    return needed


def merge(path: Path, members: list[Segment], needed: np.ndarray) -> FileEntry | None:
    """Write the rows that are needed as one segment, shortest pages first; None if there are none."""
    for segment in members:
        _ = segment.codes, segment.scales  # verified
    return write_rows(path, members, [np.flatnonzero(needed[segment.document]) for segment in members])


def write_rows(path: Path, members: list[Segment], chosen: list[np.ndarray]) -> FileEntry | None:
    """Write some rows of each segment as one. Their vectors are not verified here."""
    owner = np.repeat(np.arange(len(members)), [len(rows) for rows in chosen])
    rows = np.concatenate(chosen) if chosen else np.zeros(0, np.int64)
    if not len(rows):
        return None
    kept = np.concatenate([segment.kept[some] for segment, some in zip(members, chosen, strict=True)])
    order = np.argsort(kept, kind="stable")
    return write_columns(path, len(rows), _columns(members, owner[order], rows[order]))


def _columns(members: list[Segment], owner: np.ndarray, rows: np.ndarray) -> Iterator[Column]:
    def gathered(read: Callable[[Segment], np.ndarray]) -> np.ndarray:
        """A number of each row."""
        values = np.empty(len(rows), np.uint32)
        for number, segment in enumerate(members):
            mine = owner == number
            values[mine] = read(segment)[rows[mine]]
        return values

    def spread(arrays: list[np.ndarray], starts: list[np.ndarray]) -> Iterator[np.ndarray]:
        """The parts of arrays that belong to each row, some rows at a time."""
        for first, last in pairwise([*range(0, len(rows), CHUNK), len(rows)]):
            places = zip(owner[first:last], rows[first:last], strict=True)
            yield np.concatenate([arrays[o][starts[o][r] : starts[o][r + 1]] for o, r in places])

    numbers = {name: gathered(partial(Segment.column, name=name)) for name in NUMBERS}
    for name, values in numbers.items():
        yield array_column(name, values)
    vectors = int(numbers["kept"].sum(dtype=np.int64))
    starts = [segment.starts for segment in members]
    codes, scales = ([segment.column(name, verify=False) for segment in members] for name in ("codes", "scales"))
    yield Column("codes", codes[0].dtype.str, (vectors, codes[0].shape[1]), spread(codes, starts), long=True)
    if any(map(len, scales)):
        yield Column("scales", scales[0].dtype.str, (vectors,), spread(scales, starts), long=True)
    else:
        yield array_column("scales", scales[0][:0])
    for name in BLOBS:
        lengths = gathered(partial(Segment.blob_numbers, name=name, number="length"))
        yield array_column(f"{name}.length", lengths)
        yield array_column(f"{name}.checksum", gathered(partial(Segment.blob_numbers, name=name, number="checksum")))
        bounds = [segment.blob_starts(name) for segment in members]
        # Each blob takes its checksum along: one that is damaged stays known as such.
        total = int(lengths.sum(dtype=np.int64))
        yield Column(name, "|u1", (total,), spread([segment.blobs(name) for segment in members], bounds))
