"""The committer: encoded pages of documents, written in batches that survive a crash."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from anchorfold.documents import Document, DocumentFinished, FileIdentity, PageFailed, PagesCounted, Request
from anchorfold.documents.files import system_path
from anchorfold.documents.listing import Listing
from anchorfold.index.filters.given import GivenValues
from anchorfold.index.plan import make_plan, missing_documents
from anchorfold.index.progress import AddReport, Progress, Share
from anchorfold.index.source import PageEncoded, PageEvent, PageLeftOut, PageSource
from anchorfold.index.store.protocol import PageStore
from anchorfold.index.store.records import DocumentState, PageRow, PageText
from anchorfold.page import EncodedPage

COMMIT_PAGES = 32
COMMIT_SECONDS = 15.0
COMMIT_SHARE = 0.2  # of the time, at most: where pages come quickly, more of them are committed at once,
MOST_PAGES = 256  # up to so many
PASSES = 3  # over documents that change while they are read


@dataclass
class _Reading:
    """A document while its pages arrive: its state and stored `pages` by digest before the run."""

    document: Document
    state: DocumentState
    pages: dict[str, set[int]]
    identity: FileIdentity | None = None
    complete: bool = True
    problem: str | None = None

    @property
    def staged(self) -> bool:
        """Whether an older version must stay visible until this one is complete."""
        return self.identity is not None and self.state.digest not in ("", self.identity.digest)

    @property
    def stored(self) -> set[int]:
        """Pages (from 1) of this version that were there before."""
        return self.pages.get(self.identity.digest if self.identity is not None else "", set())

    @property
    def file_changed(self) -> bool:
        """Whether the file is another one now than the one that was read."""
        try:
            now = os.stat(self.document.path)
        except OSError:
            return False  # gone: the next run says so
        return self.identity is not None and (now.st_size, now.st_mtime_ns) != (
            self.identity.size,
            self.identity.modified,
        )


class Ingest:
    """One run of adding documents. The caller holds the writer's lock."""

    def __init__(
        self,
        store: PageStore,
        source: PageSource,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        given: GivenValues | None = None,
    ) -> None:
        self.store, self.source = store, source
        self.show, self.stop = progress or (lambda _: None), stop or (lambda: False)
        self.given = given or GivenValues()
        self.report, self.progress = AddReport(unmatched=list(self.given.unmatched)), Progress()
        self._share = Share(self.progress)
        self._states: dict[str, DocumentState] = {}
        self._outcomes: dict[str, str] = {}  # source to added, changed or unchanged: a document counts once
        self._again: list[Document] = []
        self._rows: list[PageRow] = []
        self._flushed, self._commit_seconds = time.monotonic(), 0.0

    def run(self, listing: Listing, prune: bool = False) -> AddReport:
        """Add or update every document listed; with `prune`, drop those that are gone from the listed folders."""
        began = time.monotonic()
        self.report.skipped.extend(listing.skipped)
        self.report.ignored = dict(listing.ignored)
        self.progress.of_documents = len(listing.documents)
        self._again = list(listing.documents)
        for _ in range(PASSES):
            documents, self._again = self._again, []
            self._pass(documents)
            if self.report.interrupted or not self._again:
                break
            self._again = [d for d in map(_as_it_is_now, self._again) if d is not None]
        else:
            for document in self._again:
                self._skip(document.name, "changes while it is read: index it again when it is finished")
        self._note_missing(listing, prune)
        for outcome in ("added", "changed", "unchanged"):
            setattr(self.report, outcome, sum(o == outcome for o in self._outcomes.values()))
        self.report.seconds = time.monotonic() - began
        return self.report

    def _pass(self, documents: Sequence[Document]) -> None:
        """Read some documents; those that changed meanwhile are left in `self._again`."""
        states = self._states = self.store.documents()
        plan = make_plan(documents, states, _exists)
        self.store.move(plan.moved)
        states.update({new: states.pop(old) for old, new in plan.moved.items()})
        self.report.described += self.store.set_metadata(self.given.values, self.given.types)
        self.store.drop_staged(plan.stale)
        for document in plan.unchanged:
            self._outcomes.setdefault(document.source, "unchanged")
            self._share.finish(document.source)
        self.show(self.progress)
        stored = self.store.stored_pages([d.source for d in plan.read])
        readings = {
            d.source: _Reading(d, states.get(d.source) or DocumentState(d.name), stored.get(d.source, {}))
            for d in plan.read
        }
        texts = self.store.settings.text
        requests = [
            Request(r.document, {d: {page - 1 for page in pages} for d, pages in r.pages.items()}, texts=texts)
            for r in readings.values()
        ]
        try:
            with closing(self.source.events(requests, self.stop)) as events:
                for event in events:
                    self._take(event, readings[event.document.source])
        except BaseException:
            with suppress(Exception):  # the first error is the one to show
                self._flush()
            raise
        self._flush()
        self.report.interrupted = self.stop()

    def _skip(self, name: str, why: str) -> None:
        self.report.skipped.append((name, why))

    def _take(self, event: PageEvent, reading: _Reading) -> None:
        match event:
            case PagesCounted():
                self._share.count(event.document.source, event.pages)
                return
            case DocumentFinished():
                reading.identity, reading.problem = event.identity, event.problem
                self._finish(reading)
            case PageLeftOut():  # the next run tries it again
                reading.identity, reading.complete = event.identity, False
                self._skip(f"{event.document.name} page {event.number + 1}", event.problem)
            case PageFailed():
                reading.identity = event.identity
                self._skip(f"{event.document.name} page {event.number + 1}", event.problem)
                self._rows.append(self._row(event, reading, problem=event.problem))
            case PageEncoded():
                reading.identity = event.identity
                self._rows.append(
                    self._row(event, reading, encoded=event.page, thumbnail=event.thumbnail, text=event.text)
                )
                self.report.pages += 1
                self.report.vectors += len(event.page)
                self.report.full_vectors += event.page.full
                self.report.encode_seconds += event.seconds
                self._share.advance(event.document.source, len(reading.stored))
        self.progress.pages, self.progress.current = self.report.pages, event.document.name
        self.progress.workers = self.source.workers
        if self._commit_is_due():
            self._flush()
        self.show(self.progress)

    def _finish(self, reading: _Reading) -> None:
        """All pages of a document have arrived."""
        document, state, identity = reading.document, reading.state, reading.identity
        self._share.finish(document.source)
        if reading.file_changed:
            self._again.append(document)
            return  # a half-written file must not replace a whole one
        if reading.problem is not None:
            self._skip(document.name, with_note(reading.problem, state))
        if reading.problem is not None or identity is None:
            return
        if reading.staged:
            self._flush()
            if not reading.complete:
                return
            self.store.promote(document.source, identity.digest, identity.size, identity.modified)
            self._outcomes[document.source] = "changed"
            return
        if state.staged:
            self.store.drop_staged([document.source])
        if state.digest and (state.size, state.modified) != (identity.size, identity.modified):
            self._flush()
            self.store.touch(document.source, identity.size, identity.modified)
        if reading.complete:
            self._outcomes.setdefault(document.source, "unchanged" if state.complete else "added")

    def _row(
        self, event: PageEncoded | PageFailed, reading: _Reading, encoded: EncodedPage | None = None,
        thumbnail: bytes = b"", problem: str | None = None, text: PageText | None = None,
    ) -> PageRow:  # fmt: skip
        document, identity = event.document, event.identity
        return PageRow(
            source=document.source, document=document.name, page=event.number + 1, pages=event.total,
            digest=identity.digest, size=identity.size, modified=identity.modified, live=not reading.staged,
            encoded=encoded, thumbnail=thumbnail if self.store.settings.thumbnails else b"", problem=problem,
            text=text,
            file_metadata=identity.information, metadata=self.given.values.get(document.source, {}),
        )  # fmt: skip

    def _commit_is_due(self) -> bool:
        waited, pages = time.monotonic() - self._flushed, len(self._rows)
        if pages >= MOST_PAGES or waited > COMMIT_SECONDS:
            return True
        return pages >= COMMIT_PAGES and self._commit_seconds <= waited * COMMIT_SHARE

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        began = time.monotonic()
        self.store.append(rows)
        self._flushed = time.monotonic()
        self._commit_seconds = self._flushed - began

    def _note_missing(self, listing: Listing, prune: bool) -> None:
        present = {d.source for d in listing.documents}
        gone = missing_documents(listing.roots, present, self._states, _exists)
        if prune:
            self.store.remove(list(gone))
            self.report.removed = len(gone)
        else:
            self.report.missing = list(gone.values())


def with_note(problem: str, state: DocumentState) -> str:
    """The problem, and that an earlier version stays searchable."""
    return f"{problem}; the version indexed before is kept" if state.stored else problem


def _exists(source: str) -> bool:
    """Whether a file is there, or may be: what cannot be looked at, or is a link to nowhere, is not called gone."""
    try:
        os.lstat(system_path(source))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _as_it_is_now(document: Document) -> Document | None:
    """The document with its present size and time, or None if it is gone."""
    try:
        now = os.stat(document.path)
    except OSError:
        return None
    return replace(document, size=now.st_size, modified=now.st_mtime_ns)
