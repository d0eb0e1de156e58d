"""All live pages of one version of an index, numbered through its segments: what a search looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from anchorfold.index.coding import Coding
from anchorfold.index.store.catalogue import Document
from anchorfold.index.store.segment import Segment
from anchorfold.index.store.snapshot import Snapshot

Block = tuple[
    Segment, int, int, int, int
]  # segment, number of its first row, first row, last row (exclusive), vectors of each


class LivePages:
    """Rows of all segments one after another; `allowed (rows,)` is true for those that may be answered.

    `numbers` counts what a scan of all of them multiplies.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.version, self.documents = snapshot.version, snapshot.state.documents
        self.coding: Coding = snapshot.settings.coding
        self.segments = list(snapshot.segments().values())
        self.bases = np.concatenate(([0], np.cumsum([len(s) for s in self.segments], dtype=np.int64)))
        self.next_document = snapshot.state.next_document
        self.metadata, self.column_types = snapshot.state.metadata, snapshot.state.columns
        self.allowed = self._rows(lambda version: version.live)
        self.numbers = sum(int(s.starts[-1]) for s in self.segments) * self.coding.dim

    def __len__(self) -> int:
        return int(self.bases[-1])

    def _rows(self, wanted: Callable[[Document], bool]) -> np.ndarray:
        """`(rows,)` true for pages with vectors of documents that are wanted."""
        chosen = np.zeros(self.next_document, bool)
        chosen[[number for number, version in self.documents.items() if wanted(version)]] = True
        rows = [chosen[s.document] & (s.kept > 0) for s in self.segments]
        return np.concatenate(rows) if rows else np.zeros(0, bool)

    def of_documents(self, wanted: Callable[[Document], bool]) -> np.ndarray:
        """`(rows,)` true for live pages of documents that are wanted."""
        return self._rows(lambda version: version.live and wanted(version))

    def locate(self, number: int) -> tuple[Segment, int]:
        """The segment of a page, and its row there."""
        at = int(np.searchsorted(self.bases, number, side="right")) - 1
        return self.segments[at], number - int(self.bases[at])

    def page(self, number: int) -> tuple[Document, int]:
        """The document of a page, and its number there, from 1."""
        segment, row = self.locate(number)
        return self.documents[int(segment.document[row])], int(segment.page[row])

    def pages(self) -> Iterator[tuple[Document, int]]:
        """The same of all live pages that have vectors."""
        for segment in self.segments:
            for owner, page, kept in zip(
                *(a.tolist() for a in (segment.document, segment.page, segment.kept)), strict=True
            ):
                version = self.documents.get(owner)
                if kept and version is not None and version.live:
                    yield version, page

    def blocks(self, limit: int) -> Iterator[Block]:
        """Runs of pages of equal length that hold at most `limit` vectors, or one page."""
        for base, segment in zip(self.bases.tolist(), self.segments, strict=False):
            for first, last, length in equal_blocks(segment.kept, limit):
                if length:
                    yield segment, base, first, last, length


def equal_blocks(lengths: np.ndarray, limit: int) -> Iterator[tuple[int, int, int]]:
    """Runs `(first, last, length)` of pages of equal length that hold at most `limit` vectors, or one page."""
    edges = [0, *(np.flatnonzero(np.diff(lengths)) + 1).tolist(), len(lengths)] if len(lengths) else []
    for start, stop in pairwise(edges):
        length = int(lengths[start])
        step = max(1, limit // max(length, 1))
        for first in range(start, stop, step):
            yield first, min(first + step, stop), length
