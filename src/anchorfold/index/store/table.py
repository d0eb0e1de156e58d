"""The pages of an index on disk: commits that survive a crash, documents replaced in one step.

The log (`catalogue`) is the truth about documents and segments, a segment about its pages. Whoever writes holds the
writer's lock; readers need none.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from anchorfold.errors import DamagedError, MismatchError, NotAnIndexError
from anchorfold.index.store.catalogue import HEAD, RETRIES, Catalogue, Document, Patch, State
from anchorfold.index.store.columns import Column, write_columns
from anchorfold.index.store.faults import is_there, moved, storage_errors
from anchorfold.index.store.merging import merge, numbers_in_use, tiers_to_merge, with_garbage
from anchorfold.index.store.metadata import Metadata, Plain
from anchorfold.index.store.pages import DocumentState, PageRow, columns_of
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.store.snapshot import SEGMENTS, OpenSegments, Snapshot, segment_path
from anchorfold.index.store.texts import PageTexts, row_number

T = TypeVar("T")
OLD_TABLE = "pages.lance"  # of version 0.1
OLD_FOLDERS = (OLD_TABLE, "cache", "converting")


class PageTable(Snapshot):
    """An open index. Reads see the version that was current at `refresh`."""

    def __init__(self, folder: Path, state: State) -> None:
        super().__init__(folder, state, OpenSegments(folder))
        self._catalogue = Catalogue(folder)
        self.texts = PageTexts(folder)
        self._moving = threading.Lock()  # a reader of the same object must not take a writer's version back

    @classmethod
    def create(cls, folder: Path, settings: IndexSettings) -> PageTable:
        """A new index in a folder that is empty or not there yet."""
        with storage_errors(folder):
            (folder / SEGMENTS).mkdir(parents=True, exist_ok=True)
            if settings.text:
                PageTexts(folder).create()
            return cls(folder, Catalogue(folder).create(settings))

    @classmethod
    def open(cls, folder: Path) -> PageTable:
        """The index in a folder; NotAnIndexError if there is none."""
        if not folder.exists():
            raise NotAnIndexError(f"{folder} does not exist: make it with `anchorfold index FILES --to {folder}`.")
        if not is_there(folder):
            raise NotAnIndexError(f"{folder} is not an index: it holds no log of pages.")
        if is_old(folder):
            raise MismatchError(
                f"{folder} was made by version 0.1: `anchorfold convert {folder}` brings it to the present format "
                "without encoding a page again."
            )
        with storage_errors(folder):
            return cls(folder, Catalogue(folder).read())

    def refresh(self) -> int:
        """Move to the newest version."""
        if not is_there(self.folder):
            raise moved(self.folder)
        with storage_errors(self.folder), self._moving:
            state = self._catalogue.read(self._state)
            if state is not self._state:
                self._state = state
                self._segments.forget_others(state)
            return state.version

    # Writing: the caller holds the lock.

    def _commit(self, patch: Patch) -> None:
        with storage_errors(self.folder), self._moving:
            try:
                self._state = self._catalogue.commit(self._state, patch)
            except BaseException:
                with suppress(Exception):  # it may have been cut short after the commit
                    self._state = self._catalogue.read(self._state)
                raise

    def append(self, rows: Sequence[PageRow]) -> None:
        """Add pages in one commit."""
        if not rows:
            return
        state = self._state
        wanted = {row.source for row in rows}
        numbers = {(source, v.digest): n for source in wanted for n, v in state.versions(source).items()}
        new: dict[int, Document] = {}
        metadata: dict[int, Metadata] = {}
        for row in rows:
            key = (row.source, row.digest)
            if key not in numbers:
                numbers[key] = state.next_document + len(new)
                new[numbers[key]] = Document(
                    row.source, row.document, row.digest, row.size, row.modified, row.pages, row.live
                )
                metadata[numbers[key]] = self._inherited(row)
        columns = columns_of(rows, [numbers[row.source, row.digest] for row in rows], state.settings)
        texts = {row_number(numbers[r.source, r.digest], r.page): r.text for r in rows if r.text is not None}
        if state.settings.text and texts:
            self.texts.put(texts, state.next_document)  # before the commit: a page is never live without its text
        segment = state.next_segment
        with storage_errors(self.folder):
            entry = write_columns(segment_path(self.folder, segment), len(rows), columns)
        metadata = {number: known for number, known in metadata.items() if known != Metadata()}
        self._commit(Patch(new, {segment: entry}, {}, metadata, self._types(metadata.values())))
        self._merge_tiers()

    def keep_text(self, ocr: bool) -> None:
        """From now on the index keeps text, with `ocr` also of pages without a text layer; what is there lacks it."""
        settings = replace(self.settings, text=True, ocr=ocr)
        with storage_errors(self.folder), self._moving:
            self.texts.create(complete=False)
            self.texts.set_complete(False)
            self._state = self._catalogue.write_anew(
                replace(self._state, settings=settings, version=self._state.version + 1)
            )

    def _inherited(self, row: PageRow) -> Metadata:
        """Of a new version of a document: what people gave the others holds for it as well."""
        others = (self._state.metadata.get(number, Metadata()) for number in self._state.versions(row.source))
        given = {name: value for other in others for name, value in other.given.items()}
        return Metadata(row.metadata.file, given).described(row.metadata.given)

    def _types(self, described: Iterable[Metadata]) -> dict[str, str]:
        """Of columns that a commit writes: its line says them again, so that it needs no other."""
        types = self._state.columns
        return {name: types[name] for known in described for name in known.given if name in types}

    def describe(self, values: Mapping[str, Mapping[str, Plain | None]], types: Mapping[str, str]) -> int:
        """Give documents values in one commit, by source and column; None takes one away.

        `types` are those of all columns in it. A column that no document has a value in any more goes. Returns how many
        documents changed.
        """
        state, changed = self._state, set[str]()
        patch: dict[int, Metadata | None] = {}
        for source, given in values.items():
            for number in state.versions(source):
                before = state.metadata.get(number, Metadata())
                described = before.described(given)
                if described.typed() != before.typed():
                    patch[number] = described
                    changed.add(source)
        cleared = {name for given in values.values() for name, value in given.items() if value is None} - types.keys()
        if cleared := cleared & state.columns.keys():
            cleared -= {name for known in state.metadata.changed(patch).values() for name in known.given}
        columns: dict[str, str | None] = {**types, **dict.fromkeys(cleared)}
        if patch or any(state.columns.get(name) != kind for name, kind in columns.items()):
            self._commit(Patch({}, {}, {}, patch, columns))
        return len(changed)

    def promote(self, source: str, digest: str, size: int, modified: int) -> None:
        """Replace a document by its staged version: one commit makes it live and drops all others.

        Size and time are the file's: it may have been written again since its first pages were staged.
        """
        versions = self._state.versions(source)
        promoted = {n: replace(v, live=True, size=size, modified=modified) for n, v in versions.items()}
        self._commit(Patch({n: promoted[n] if v.digest == digest else None for n, v in versions.items()}))

    def touch(self, source: str, size: int, modified: int) -> None:
        """Store a document's size and time anew: the file was written again with the same content."""
        versions = {n: v for n, v in self._state.versions(source).items() if v.live}
        self._commit(Patch({n: replace(v, size=size, modified=modified) for n, v in versions.items()}))

    def move(self, sources: Mapping[str, str]) -> None:
        """Give documents another source, from old to new path, in one commit."""
        versions = {n: v for source in sources for n, v in self._state.versions(source).items()}
        if versions:
            self._commit(Patch({n: replace(v, source=sources[v.source]) for n, v in versions.items()}))

    def remove(self, sources: Iterable[str]) -> None:
        """Delete some documents in one commit."""
        self._drop(set(sources), staged_only=False)

    def drop_staged(self, sources: Iterable[str]) -> None:
        """Delete versions of some documents that never became live."""
        self._drop(set(sources), staged_only=True)

    def _drop(self, sources: set[str], staged_only: bool) -> None:
        dropped = {
            number: None
            for source in sorted(sources)
            for number, version in self._state.versions(source).items()
            if not (staged_only and version.live)
        }
        if dropped:
            self._commit(Patch(dropped))

    def tidy(self) -> None:
        """Merge small segments, rewrite those that are half garbage, and remove what writers that died left."""
        for members in with_garbage(self.segments(), numbers_in_use(self._state)):
            self._merge(members)
        self._merge_tiers()  # last: what was rewritten is smaller, and may now be one of many of a size
        self.texts.tidy(self._state.documents)
        self.remove_left_overs()

    def remove_left_overs(self) -> None:
        """Remove files that no version names: of writers that died, and of a table that was converted."""
        named = {segment_path(self.folder, number) for number in self._state.segments}
        named |= {self.folder / SEGMENTS / name for name in self._state.extras}
        with storage_errors(self.folder):
            self._catalogue.remove_others(self._state)
            for path in (self.folder / SEGMENTS).iterdir():
                if path not in named:
                    path.unlink(missing_ok=True)
            (self.folder / f"{HEAD}.part").unlink(missing_ok=True)
            for old in OLD_FOLDERS:
                shutil.rmtree(self.folder / old, ignore_errors=True)

    def _merge_tiers(self) -> None:
        while groups := tiers_to_merge(self._state.segments):
            for members in groups:
                self._merge(members)

    def _merge(self, members: Sequence[int]) -> None:
        """One commit puts a new segment in the place of some; whoever reads an older version starts again."""
        state, number = self._state, self._state.next_segment
        segments = [self._segments.get(n, state.segments[n], state) for n in members]
        with storage_errors(self.folder):
            entry = merge(segment_path(self.folder, number), segments, numbers_in_use(state))
        gone = [name for name in state.extras if name.partition("-")[0] in {f"{n:08}" for n in members}]
        segments_after = {**dict.fromkeys(members), **({number: entry} if entry else {})}
        self._commit(Patch({}, segments_after, dict.fromkeys(gone)))
        self._segments.forget_others(self._state)
        with storage_errors(self.folder):
            for path in (*(segment_path(self.folder, n) for n in members), *(self.folder / SEGMENTS / n for n in gone)):
                path.unlink(missing_ok=True)

    def put_extra(self, name: str, rows: int, columns: Iterable[Column], instead_of: Iterable[str] = ()) -> None:
        """Write a file that was made from segments, in the place of others, in one commit.

        A name that begins with a segment's number and a dash goes with that segment.
        """
        with storage_errors(self.folder):
            entry = write_columns(self.folder / SEGMENTS / name, rows, columns)
        self._commit(Patch({}, {}, {**dict.fromkeys(instead_of), name: entry}))

    # Reading.

    def snapshot(self, read: Callable[[Snapshot], T]) -> T:
        """Run a function on the newest version; again on a newer one if a writer merged its segments meanwhile."""
        for _ in range(RETRIES):
            self.refresh()
            view = Snapshot(self.folder, self._state, self._segments)
            try:
                return read(view)
            except DamagedError:
                if self.refresh() == view.version:
                    raise
        return read(Snapshot(self.folder, self._state, self._segments))

    def documents(self) -> dict[str, DocumentState]:
        """Every document by its source."""
        return self.snapshot(Snapshot.documents)


def is_old(folder: Path) -> bool:
    """Whether a folder holds an index of version 0.1 that was not converted."""
    versions = folder / OLD_TABLE / "_versions"
    return versions.is_dir() and bool(os.listdir(versions)) and not (folder / HEAD).exists()
