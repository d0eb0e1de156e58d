"""One version of an index, as readers see it: its documents, and its pages in open segments."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from anchorfold.errors import DamagedError
from anchorfold.index.store.catalogue import Document, FileEntry, State
from anchorfold.index.store.columns import ColumnFile
from anchorfold.index.store.faults import damaged, storage_errors
from anchorfold.index.store.pages import DocumentState, StoredPage
from anchorfold.index.store.segment import Segment
from anchorfold.index.store.settings import IndexSettings

SEGMENTS = "segments"
NAMED = 3  # documents that a message about damage names


def segment_path(folder: Path, number: int) -> Path:
    """The file of a segment."""
    return folder / SEGMENTS / f"{number:08}.segment"


class OpenSegments:
    """The segments of an index that this process has open. Safe for threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._open: dict[int, Segment] = {}
        self._extras: dict[str, ColumnFile] = {}

    def get(self, number: int, entry: FileEntry, state: State) -> Segment:
        """A segment, opened if need be; DamagedError if it is missing or not what was written."""
        with self._lock:
            if number not in self._open:
                with storage_errors(self.folder):
                    self._open[number] = Segment(
                        segment_path(self.folder, number), entry, partial(_damage, self.folder, state.documents)
                    )
            return self._open[number]

    def extra(self, name: str, state: State) -> ColumnFile:
        """An extra file of a version."""
        with self._lock:
            if name not in self._extras:
                with storage_errors(self.folder):
                    self._extras[name] = ColumnFile(
                        self.folder / SEGMENTS / name, state.extras[name], partial(_damage, self.folder, {})
                    )
            return self._extras[name]

    def is_open(self, number: int) -> bool:
        """Whether a segment was opened, and its numbers of pages could be read."""
        with self._lock:
            return number in self._open

    def forget_others(self, state: State) -> None:
        """Let go of files that a version does not name; those that use them keep them as long as they do."""
        with self._lock:
            self._open = {number: segment for number, segment in self._open.items() if number in state.segments}
            self._extras = {name: file for name, file in self._extras.items() if name in state.extras}


def _damage(folder: Path, documents: Mapping[int, Document], what: str, affected: Sequence[int]) -> DamagedError:
    names = sorted({documents[number].name for number in affected if number in documents})
    more = ", ..." if len(names) > NAMED else ""
    return damaged(folder, what + (f"; it holds pages of {', '.join(names[:NAMED])}{more}" if names else ""))


class Snapshot:
    """Reads one version. `state` never changes; the segments are shared with other snapshots of the same index."""

    def __init__(self, folder: Path, state: State, segments: OpenSegments) -> None:
        self.folder, self._state, self._segments = folder, state, segments

    @property
    def state(self) -> State:
        """Documents and segments of this version."""
        return self._state

    @property
    def settings(self) -> IndexSettings:
        """What the index was made with."""
        return self._state.settings

    @property
    def version(self) -> int:
        """Moves with every commit."""
        return self._state.version

    def segments(self) -> dict[int, Segment]:
        """All segments by number."""
        state = self._state
        return {number: self._segments.get(number, entry, state) for number, entry in state.segments.items()}

    def extra(self, name: str) -> ColumnFile:
        """A file that was made from segments, by its name in the log."""
        return self._segments.extra(name, self._state)

    def documents(self) -> dict[str, DocumentState]:
        """Every document by its source."""
        state = self._state
        pages: dict[int, set[int]] = {}
        for segment in self.segments().values():
            order = np.argsort(segment.document, kind="stable")
            owners, firsts = np.unique(segment.document[order], return_index=True)
            for owner, some in zip(owners.tolist(), np.split(segment.page[order], firsts[1:]), strict=True):
                pages.setdefault(owner, set()).update(some.tolist())
        states: dict[str, DocumentState] = {}
        for number, version in state.documents.items():
            known = states.setdefault(version.source, DocumentState(version.name))
            if version.live:
                known.document, known.digest, known.pages = version.name, version.digest, version.pages
                known.size, known.modified = version.size, version.modified
                known.have = pages.get(number, set())
            elif number in pages:
                known.staged[version.digest] = pages[number]
        return states

    def pages(self, live: bool = True) -> Iterator[StoredPage]:
        """All pages of live documents, or of staged ones as well, in no promised order."""
        state = self._state
        for segment in self.segments().values():
            for row, number in enumerate(segment.document.tolist()):
                version = state.documents.get(number)
                if version is not None and (version.live or not live):
                    yield StoredPage(version, segment, row, state.settings)

    def encoded_pages(self) -> Iterator[StoredPage]:
        """All live pages that have vectors, in no promised order."""
        return (page for page in self.pages() if page.kept)

    def page(self, source: str, number: int) -> StoredPage | None:
        """One live page; None if there is no such page."""
        state = self._state
        owners = [n for n, version in state.versions(source).items() if version.live]
        for segment in self.segments().values():
            for row in np.flatnonzero(np.isin(segment.document, owners) & (segment.page == number)).tolist():
                return StoredPage(state.documents[int(segment.document[row])], segment, row, state.settings)
        return None
