"""The committer: writes encoded pages to the store in crash-safe batches."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace

from anchorfold.documents import Document, DocumentFinished, FileIdentity, PageFailed, RenderRequest
from anchorfold.documents.files import file_status, unescape_path
from anchorfold.documents.listing import DocumentListing
from anchorfold.filters.metadata import GivenValues
from anchorfold.ingestion.encoded_pages import EncodingFailed, PageEncoded, PageEvent, PageSource
from anchorfold.ingestion.plan import make_plan, missing_documents
from anchorfold.ingestion.progress import AddReport, Progress, ProgressEstimate
from anchorfold.page import EncodedPage
from anchorfold.storage.protocol import PageStore
from anchorfold.storage.records import DocumentState, PageRow, PageText

COMMIT_PAGES = 32
COMMIT_SECONDS = 15.0
COMMIT_SHARE = 0.2  # maximum share of time spent on commits: with fast encoders, batches grow
MAX_COMMIT_PAGES = 256  # maximum pages per commit
MAX_PASSES = 3  # maximum attempts for documents that change while they are read


@dataclass
class _PendingDocument:
    """A document in progress, with its state and its stored `pages` by digest before the run."""

    document: Document
    state: DocumentState
    pages: dict[str, set[int]]
    identity: FileIdentity | None = None
    complete: bool = True
    problem: str | None = None

    @property
    def staged(self) -> bool:
        """Whether an older version must remain visible until this one is complete."""
        return self.identity is not None and self.state.digest not in ("", self.identity.digest)

    @property
    def stored(self) -> set[int]:
        """Pages (from 1) of this version that were stored before the run."""
        return self.pages.get(self.identity.digest if self.identity is not None else "", set())

    @property
    def file_changed(self) -> bool:
        """Whether the file was modified since it was read."""
        status = file_status(self.document.path)
        if self.identity is None or status is None:
            return False  # unreadable, or deleted: the next run reports it
        return status != (self.identity.size, self.identity.modified)


class Ingest:
    """One run of adding documents. The caller holds the writer lock."""

    def __init__(
        self,
        store: PageStore,
        source: PageSource,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        metadata: GivenValues | None = None,
    ) -> None:
        self.store, self.source = store, source
        self.show, self.stop = progress or (lambda _: None), stop or (lambda: False)
        self.metadata = metadata or GivenValues()
        self.report, self.progress = AddReport(unmatched=list(self.metadata.unmatched)), Progress()
        self._estimate = ProgressEstimate(self.progress)
        self._states: dict[str, DocumentState] = {}
        self._outcomes: dict[str, str] = {}  # source to added, changed or unchanged: each document is counted once
        self._changed: list[Document] = []
        self._rows: list[PageRow] = []
        self._flushed, self._commit_seconds = time.monotonic(), 0.0

    def run(self, listing: DocumentListing, prune: bool = False) -> AddReport:
        """Add or update the listed documents; with `prune`, remove documents whose files were deleted."""
        began = time.monotonic()
        self.report.skipped.extend(listing.skipped)
        self.report.ignored = dict(listing.ignored)
        self._estimate.start(listing.documents)
        self._changed = list(listing.documents)
        for _ in range(MAX_PASSES):
            documents, self._changed = self._changed, []
            self._pass(documents)
            if self.report.interrupted or not self._changed:
                break
            statuses = ((document, file_status(document.path)) for document in self._changed)
            self._changed = [replace(d, size=status[0], modified=status[1]) for d, status in statuses if status]
        else:
            for document in self._changed:
                self._skip(document.name, "changes while it is read: index it again when it is finished")
        self._report_missing(listing, prune)
        for outcome in ("added", "changed", "unchanged"):
            setattr(self.report, outcome, sum(o == outcome for o in self._outcomes.values()))
        self.report.seconds = time.monotonic() - began
        return self.report

    def _pass(self, documents: Sequence[Document]) -> None:
        """Read documents; those that changed while they were read are added to `self._changed`."""
        states = self._states = self.store.documents()
        plan = make_plan(documents, states, _exists)
        self.store.move(plan.moved)
        states.update({new: states.pop(old) for old, new in plan.moved.items()})
        self.report.metadata_updated += self.store.set_metadata(self.metadata.values, self.metadata.types)
        self.store.drop_staged(plan.stale)
        for document in plan.unchanged:
            self._outcomes.setdefault(document.source, "unchanged")
            self._estimate.finish(document)
        self.show(self.progress)
        stored = self.store.stored_pages([d.source for d in plan.read])
        pending = {
            d.source: _PendingDocument(d, states.get(d.source) or DocumentState(d.name), stored.get(d.source, {}))
            for d in plan.read
        }
        texts = self.store.settings.text
        requests = [
            RenderRequest(
                r.document, {d: {page - 1 for page in pages} for d, pages in r.pages.items()}, with_text=texts
            )
            for r in pending.values()
        ]
        try:
            with closing(self.source.events(requests, self.stop)) as events:
                for event in events:
                    self._handle(event, pending[event.document.source])
        except BaseException:
            with suppress(Exception):  # report the first error
                self._flush()
            raise
        self._flush()
        self.report.interrupted = self.stop()

    def _skip(self, name: str, why: str) -> None:
        self.report.skipped.append((name, why))

    def _handle(self, event: PageEvent, pending_document: _PendingDocument) -> None:
        match event:
            case DocumentFinished():
                pending_document.identity, pending_document.problem = event.identity, event.problem
                self._finish(pending_document)
            case EncodingFailed():  # the next run retries it
                pending_document.identity, pending_document.complete = event.identity, False
                self._skip(f"{event.document.name} page {event.number + 1}", event.problem)
            case PageFailed():
                pending_document.identity = event.identity
                self._skip(f"{event.document.name} page {event.number + 1}", event.problem)
                self._rows.append(self._row(event, pending_document, problem=event.problem))
            case PageEncoded():
                pending_document.identity = event.identity
                self._rows.append(
                    self._row(event, pending_document, encoded=event.page, thumbnail=event.thumbnail, text=event.text)
                )
                self.report.pages += 1
                self.report.vectors += len(event.page)
                self.report.full_vectors += event.page.full
                self.report.encode_seconds += event.seconds
                self._estimate.advance(event.document, event.total, len(pending_document.stored))
        self.progress.pages, self.progress.current = self.report.pages, event.document.name
        self.progress.workers = self.source.workers
        if self._commit_is_due():
            self._flush()
        self.show(self.progress)

    def _finish(self, pending_document: _PendingDocument) -> None:
        """Commit or skip a document after its last page."""
        document, state, identity = pending_document.document, pending_document.state, pending_document.identity
        self._estimate.finish(document)
        if pending_document.file_changed:
            self._changed.append(document)
            return  # a partially written file must not replace a complete one
        if pending_document.problem is not None:
            note = "; the version indexed before is kept" if state.stored else ""
            self._skip(document.name, f"{pending_document.problem}{note}")
        if pending_document.problem is not None or identity is None:
            return
        if pending_document.staged:
            self._flush()
            if not pending_document.complete:
                return
            self.store.promote(document.source, identity.digest, identity.size, identity.modified)
            self._outcomes[document.source] = "changed"
            return
        if state.staged:
            self.store.drop_staged([document.source])
        if state.digest and (state.size, state.modified) != (identity.size, identity.modified):
            self._flush()
            self.store.touch(document.source, identity.size, identity.modified)
        if pending_document.complete:
            self._outcomes.setdefault(document.source, "unchanged" if state.complete else "added")

    def _row(
        self, event: PageEncoded | PageFailed, pending_document: _PendingDocument, encoded: EncodedPage | None = None,
        thumbnail: bytes = b"", problem: str | None = None, text: PageText | None = None,
    ) -> PageRow:  # fmt: skip
        document, identity = event.document, event.identity
        return PageRow(
            source=document.source, document=document.name, page=event.number + 1, pages=event.total,
            digest=identity.digest, size=identity.size, modified=identity.modified, live=not pending_document.staged,
            encoded=encoded, thumbnail=thumbnail if self.store.settings.thumbnails else b"", problem=problem,
            text=text,
            file_metadata=identity.metadata, metadata=self.metadata.values.get(document.source, {}),
        )  # fmt: skip

    def _commit_is_due(self) -> bool:
        waited, pages = time.monotonic() - self._flushed, len(self._rows)
        if pages >= MAX_COMMIT_PAGES or waited > COMMIT_SECONDS:
            return True
        return pages >= COMMIT_PAGES and self._commit_seconds <= waited * COMMIT_SHARE

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        began = time.monotonic()
        self.store.append(rows)
        self._flushed = time.monotonic()
        self._commit_seconds = self._flushed - began

    def _report_missing(self, listing: DocumentListing, prune: bool) -> None:
        present = {d.source for d in listing.documents}
        gone = missing_documents(listing.roots, present, self._states, _exists)
        if prune:
            self.store.remove(list(gone))
            self.report.removed = len(gone)
        else:
            self.report.missing = list(gone.values())


def _exists(source: str) -> bool:
    """Return whether a file exists or may exist: inaccessible files and broken links count as existing."""
    try:
        os.lstat(unescape_path(source))
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True
