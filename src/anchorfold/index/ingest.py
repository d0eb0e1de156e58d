"""From files to committed pages: rendered ahead, encoded, compressed, and written in batches that survive a crash."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from anchorfold.backbones.encoder import PageEncoder
from anchorfold.compressors import Compressor
from anchorfold.documents import (
    Document,
    DocumentFinished,
    FileIdentity,
    PageFailed,
    PageRendered,
    PagesCounted,
    Renderer,
    Request,
)
from anchorfold.documents.files import system_path
from anchorfold.documents.listing import Listing
from anchorfold.documents.rendering import Event
from anchorfold.errors import BrokenModelError
from anchorfold.index.plan import make_plan, missing_documents
from anchorfold.index.store.schema import PageRow
from anchorfold.index.store.table import DocumentState, PageTable
from anchorfold.page import EncodedPage

COMMIT_PAGES = 32
COMMIT_SECONDS = 15.0
PASSES = 3  # over documents that change while they are read
ALIKE_FAILURES = 3  # in a row: then it is the model, not the pages


@dataclass
class AddReport:
    """What a run did. `pages`, `vectors` and `full_vectors` are those written in this run; seconds are wall time.

    >>> report = index.add("reports")
    >>> report.added, report.unchanged, report.skipped
    (0, 1, [])
    """

    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    missing: list[str] = field(default_factory=list)
    pages: int = 0
    vectors: int = 0
    full_vectors: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    encode_seconds: float = 0.0
    interrupted: bool = False


@dataclass
class Progress:
    """How far a run is. `share` goes from 0 to 1 with the pages that are done or need not be done.

    >>> report = index.add("reports", progress=lambda progress: print(f"{progress.share:.0%}"))
    100%
    """

    pages: int = 0
    documents: int = 0
    of_documents: int = 0
    share: float = 0.0
    current: str = ""


@dataclass
class _Reading:
    """A document while its pages arrive. `state` is what the table knew of it; `problem` why it could not be read."""

    document: Document
    state: DocumentState
    identity: FileIdentity | None = None
    complete: bool = True
    problem: str | None = None

    @property
    def staged(self) -> bool:
        """Whether an older version must stay visible until this one is complete."""
        return self.identity is not None and self.state.digest not in ("", self.identity.digest)

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
        table: PageTable,
        model: PageEncoder,
        compressor: Compressor,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.table, self.model, self.compressor = table, model, compressor
        self.show, self.stop = progress or (lambda _: None), stop or (lambda: False)
        self.batch_size = batch_size or model.default_batch
        self.report, self.progress = AddReport(), Progress()
        self._states: dict[str, DocumentState] = {}
        self._outcomes: dict[str, str] = {}  # source to added, changed or unchanged: a document counts once
        self._again: list[Document] = []
        self._rows: list[PageRow] = []
        self._batch: list[tuple[PageRendered, _Reading]] = []
        self._failures: list[str] = []
        self._flushed = time.monotonic()
        self._counts: dict[Document, int] = {}
        self._done = 0.0  # pages of finished documents

    def run(self, listing: Listing, prune: bool = False) -> AddReport:
        """Add or update every document listed; with `prune`, drop those that are gone from the listed folders."""
        began = time.monotonic()
        self.report.skipped.extend(listing.skipped)
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
        states = self._states = self.table.documents()
        plan = make_plan(documents, states, _exists)
        self.table.move(plan.moved)
        states.update({new: states.pop(old) for old, new in plan.moved.items()})
        self.table.drop_staged(plan.stale)
        for document in plan.unchanged:
            self._outcomes.setdefault(document.source, "unchanged")
            self._advance(document)
        self.show(self.progress)
        readings = {d.source: _Reading(d, states.get(d.source) or DocumentState(d.name)) for d in plan.read}
        requests = [Request(r.document, stored_pages(r.state)) for r in readings.values()]
        with Renderer(requests, self.model.page_pixels, census=plan.read) as renderer:
            try:
                for event in renderer:
                    self._take(event, readings[event.document.source])
                    if self.stop():
                        self.report.interrupted = True
                        break
                self._encode()
            except BaseException:
                with suppress(Exception):  # the first error is the one to show
                    self._flush()
                raise
        self._flush()

    def _skip(self, name: str, why: str) -> None:
        self.report.skipped.append((name, why))

    def _take(self, event: Event, reading: _Reading) -> None:
        match event:
            case PagesCounted():
                self._counts[event.document] = event.pages
                return
            case DocumentFinished():
                reading.identity, reading.problem = event.identity, event.problem
                self._finish(reading)
            case PageFailed():
                reading.identity = event.identity
                self._skip(f"{event.document.name} page {event.number + 1}", event.problem)
                self._rows.append(self._row(event, reading, problem=event.problem))
            case PageRendered():
                reading.identity = event.identity
                self._batch.append((event, reading))
                if len(self._batch) >= self.batch_size:
                    self._encode()
                self._show_share(event.number + 1)
        self.progress.current = event.document.name
        if len(self._rows) >= COMMIT_PAGES or time.monotonic() - self._flushed > COMMIT_SECONDS:
            self._flush()
        self.show(self.progress)

    def _finish(self, reading: _Reading) -> None:
        """All pages of a document have arrived."""
        document, state, identity = reading.document, reading.state, reading.identity
        self._advance(document)
        if reading.file_changed:
            self._again.append(document)
            return  # a half-written file must not replace a whole one
        if reading.problem is not None:
            self._skip(document.name, kept_note(reading.problem, state))
        if reading.problem is not None or identity is None:
            return
        if reading.staged:
            self._encode()
            self._flush()
            if not reading.complete:
                return
            self.table.promote(document.source, identity.digest)
            self._outcomes[document.source] = "changed"
            return
        if state.staged:
            self.table.drop_staged([document.source])
        if state.digest and (state.size, state.modified) != (identity.size, identity.modified):
            self._encode()
            self._flush()
            self.table.touch(document.source, identity.size, identity.modified)
        if reading.complete:
            self._outcomes.setdefault(document.source, "unchanged" if state.complete else "added")

    def _advance(self, document: Document) -> None:
        self.progress.documents = min(self.progress.documents + 1, self.progress.of_documents)
        self._done += self._counts.get(document, self._mean_pages())
        self._show_share(0)

    def _mean_pages(self) -> float:
        """Pages a document among those that were counted, which the others are guessed by."""
        return sum(self._counts.values()) / len(self._counts) if self._counts else 1.0

    def _show_share(self, further: int) -> None:
        counts = self._counts
        total = sum(counts.values()) + self._mean_pages() * (self.progress.of_documents - len(counts))
        self.progress.share = max(self.progress.share, min((self._done + further) / max(total, 1.0), 1.0))

    def _encode(self) -> None:
        batch, self._batch = self._batch, []
        if not batch:
            return
        began = time.monotonic()
        for (event, reading), page in zip(batch, self._encoded(batch), strict=True):
            if page is None:
                continue
            self._rows.append(self._row(event, reading, encoded=page, thumbnail=event.thumbnail))
            self.report.pages += 1
            self.report.vectors += len(page)
            self.report.full_vectors += page.full
        self.report.encode_seconds += time.monotonic() - began
        self.progress.pages = self.report.pages

    def _encoded(self, batch: list[tuple[PageRendered, _Reading]]) -> list[EncodedPage | None]:
        try:
            images = [event.image for event, _ in batch]
            pages: list[EncodedPage | None] = list(self.model.encode_pages(images, self.compressor, self.batch_size))
        except (BrokenModelError, ValueError, OSError, RuntimeError) as error:
            if len(batch) > 1:  # one page may be to blame, or too many at once
                return [page for one in batch for page in self._encoded([one])]
            if isinstance(error, BrokenModelError):
                raise
            self._blame(*batch[0], str(error) or type(error).__name__)
            return [None]
        self._failures.clear()
        return pages

    def _blame(self, event: PageRendered, reading: _Reading, why: str) -> None:
        """Leave a page out; the next run tries it again. Several that fail alike in a row are not to blame."""
        self._failures.append(why)
        if self._failures[-ALIKE_FAILURES:] == [why] * ALIKE_FAILURES:
            raise BrokenModelError(
                f"{ALIKE_FAILURES} pages in a row could not be encoded ({why}): stopped at "
                f"{event.document.name} page {event.number + 1}; mend the model or its settings and run again."
            )
        self._skip(f"{event.document.name} page {event.number + 1}", f"cannot be encoded ({why})")
        reading.complete = False

    def _row(
        self, event: PageRendered | PageFailed, reading: _Reading, encoded: EncodedPage | None = None,
        thumbnail: bytes = b"", problem: str | None = None,
    ) -> PageRow:  # fmt: skip
        document, identity = event.document, event.identity
        return PageRow(
            source=document.source, document=document.name, page=event.number + 1, pages=event.total,
            digest=identity.digest, size=identity.size, modified=identity.modified, live=not reading.staged,
            encoded=encoded, thumbnail=thumbnail if self.table.settings.thumbnails else b"", problem=problem,
        )  # fmt: skip

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        self.table.append(rows)
        self._flushed = time.monotonic()

    def _note_missing(self, listing: Listing, prune: bool) -> None:
        present = {d.source for d in listing.documents}
        gone = missing_documents(listing.roots, present, self._states, _exists)
        if prune:
            self.table.remove(gone)
            self.report.removed = len(gone)
        else:
            self.report.missing = list(gone.values())


def stored_pages(state: DocumentState) -> dict[str, set[int]]:
    """Pages (from 0) of each version that need not be read again."""
    versions = {state.digest: state.have, **state.staged} if state.digest else state.staged
    return {digest: {page - 1 for page in pages} for digest, pages in versions.items()}


def kept_note(problem: str, state: DocumentState) -> str:
    """The problem, and that an earlier version stays searchable."""
    return f"{problem}; the version indexed before is kept" if state.have else problem


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
