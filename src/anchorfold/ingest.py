"""From files to committed pages: rendered ahead, encoded, compressed, and written in batches that survive a crash."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from anchorfold.compressors import Compressor
from anchorfold.documents import Document, RenderedPage, Renderer, find_documents
from anchorfold.documents.files import source_of
from anchorfold.documents.rendering import Request
from anchorfold.errors import UnreadableDocumentError
from anchorfold.page import EncodedPage
from anchorfold.store.schema import PageRow
from anchorfold.store.table import DocumentState, PageTable, quoted

if TYPE_CHECKING:
    from anchorfold.backbones import Retriever

COMMIT_PAGES = 32
COMMIT_SECONDS = 15.0


@dataclass
class AddReport:
    """What a run did. `pages`, `vectors` and `full_vectors` are those written in this run; seconds are wall time."""

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
    """How far a run is. `share` goes from 0 to 1 with the pages that are done or need not be done."""

    pages: int = 0
    documents: int = 0
    of_documents: int = 0
    share: float = 0.0
    current: str = ""


@dataclass
class _Plan:
    """What to do with one document: `staged` if an older version must stay visible until this one is complete."""

    staged: bool
    have: set[int]
    failed: bool = False


class Ingest:
    """One run of adding documents. The caller holds the writer's lock."""

    def __init__(
        self,
        table: PageTable,
        model: Retriever,
        compressor: Compressor,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.table, self.model, self.compressor = table, model, compressor
        self.tell, self.stop = progress or (lambda _: None), stop or (lambda: False)
        self.batch_size = batch_size or model.default_batch
        self.report, self.progress = AddReport(), Progress()
        self._known: dict[str, DocumentState] = {}
        self._plans: dict[str, _Plan] = {}
        self._stale: list[str] = []  # documents with staged pages of a version that is gone again
        self._rows: list[PageRow] = []
        self._batch: list[RenderedPage] = []
        self._flushed = time.monotonic()
        self._done = 0.0  # pages of finished documents
        self._renderer: Renderer | None = None

    def run(self, paths: Sequence[str | Path], prune: bool = False) -> AddReport:
        """Add or update every document among the paths; with `prune`, drop those that are gone from them."""
        began = time.monotonic()
        self._known = self.table.documents()
        documents = self._recognise(find_documents(paths, self._skip, exclude=self.table.folder))
        self.progress.of_documents = len(documents)
        self.tell(self.progress)
        self._renderer = Renderer(self._requests(documents), self.model.page_pixels, census=documents)
        with self._renderer as renderer:
            try:
                for event in renderer:
                    self._take(event)
                    if self.stop():
                        self.report.interrupted = True
                        break
                self._encode()
            except BaseException:
                with suppress(Exception):  # the first error is the one to show
                    self._flush()
                raise
        self._flush()
        for source in self._stale:
            self.table.delete(f"source = {quoted(source)} AND NOT live")
        self._note_missing(paths, {d.source for d in documents}, prune)
        self.report.seconds = time.monotonic() - began
        return self.report

    def _recognise(self, found: Iterable[Document]) -> list[Document]:
        """Give documents that the table knows their name there.

        A file is known by its path. If that is new but its name is taken, the file was moved, together with the
        folder it is named from, unless the old one is still there: then they are two, and the new one gets its full
        path for a name.
        """
        documents, moved = [], {}
        names = {state.document: source for source, state in self._known.items()}
        for document in found:
            name = document.name
            if document.source in self._known:
                name = self._known[document.source].document
            elif (old := names.get(name)) is not None:
                if os.path.exists(old):
                    name = document.source
                else:
                    moved[old] = document.source
                    self._known[document.source] = self._known.pop(old)
            documents.append(replace(document, name=name))
        self.table.move(moved)
        return documents

    def _skip(self, name: str, why: str) -> None:
        self.report.skipped.append((name, why))

    def _requests(self, documents: Iterable[Document]) -> Iterator[Request]:
        """Runs in the renderer's thread, ahead of the encoder: which pages of which documents are wanted."""
        for document in documents:
            state = self._known.get(document.source)
            try:
                plan = self._plan(document, state)
            except UnreadableDocumentError as problem:
                self._skip(document.name, kept_note(str(problem), state))
                plan = None
            if plan is None:
                self._advance(document)
                continue
            self._plans[document.source] = plan
            total = state.pages if state is not None and not plan.staged else 0
            missing = [p - 1 for p in range(1, total + 1) if p not in plan.have] if total else None
            yield Request(document, missing)

    def _plan(self, document: Document, state: DocumentState | None) -> _Plan | None:
        if state is None:
            return _Plan(False, set())
        same_file = (state.size, state.modified) == (document.size, document.modified)
        if not (state.digest and (same_file or state.digest == document.digest)):
            return _Plan(True, state.staged.get(document.digest, set()))
        if not state.complete:
            return _Plan(False, state.have)
        if state.staged:
            self._stale.append(document.source)
        self.report.unchanged += 1
        return None

    def _take(self, event: RenderedPage) -> None:
        document = event.document
        plan = self._plans[document.source]
        self.progress.current = document.name
        if event.number is None:
            if event.problem is not None:
                plan.failed = True
                self._skip(document.name, kept_note(event.problem, self._known.get(document.source)))
            else:
                self._finish(document, plan)
        elif event.number + 1 in plan.have:
            return
        elif event.problem is not None:
            self._skip(f"{document.name} page {event.number + 1}", event.problem)
            self._rows.append(self._row(event, None))
        else:
            self._batch.append(event)
            if len(self._batch) >= self.batch_size:
                self._encode()
            self._show_share(event.number + 1)
        if len(self._rows) >= COMMIT_PAGES or time.monotonic() - self._flushed > COMMIT_SECONDS:
            self._flush()
        self.tell(self.progress)

    def _finish(self, document: Document, plan: _Plan) -> None:
        if plan.staged and not plan.failed:
            self._encode()
            self._flush()
            if not plan.failed:
                self.table.promote(document.source, document.digest)
        if not plan.failed:
            known = self._known.get(document.source)
            if known is not None and known.digest not in ("", document.digest):
                self.report.changed += 1
            else:
                self.report.added += 1
        del self._plans[document.source]
        self._advance(document)

    def _advance(self, document: Document) -> None:
        self.progress.documents += 1
        counts, mean = self._page_counts()
        self._done += counts.get(document, mean)
        self._show_share(0)

    def _page_counts(self) -> tuple[dict[Document, int], float]:
        """Pages of the documents that were counted, and their mean, which the others are guessed by."""
        counts = self._renderer.counts if self._renderer is not None else {}
        return counts, sum(counts.values()) / len(counts) if counts else 1.0

    def _show_share(self, further: int) -> None:
        counts, mean = self._page_counts()
        total = sum(counts.values()) + mean * (self.progress.of_documents - len(counts))
        self.progress.share = min((self._done + further) / max(total, 1.0), 1.0)

    def _encode(self) -> None:
        batch, self._batch = self._batch, []
        if not batch:
            return
        began = time.monotonic()
        for event, page in zip(batch, self._encoded(batch), strict=True):
            if page is None:
                continue
            self._rows.append(self._row(event, page))
            self.report.pages += 1
            self.report.vectors += len(page)
            self.report.full_vectors += page.full
        self.report.encode_seconds += time.monotonic() - began
        self.progress.pages = self.report.pages

    def _encoded(self, batch: list[RenderedPage]) -> list[EncodedPage | None]:
        try:
            images = [event.image for event in batch if event.image is not None]
            return list(self.model.encode_pages(images, self.compressor, self.batch_size))
        except (ValueError, RuntimeError) as error:
            if len(batch) > 1:
                return [page for event in batch for page in self._encoded([event])]
            event = batch[0]
            self._skip(f"{event.document.name} page {(event.number or 0) + 1}", f"cannot be encoded ({error})")
            if (plan := self._plans.get(event.document.source)) is not None:
                plan.failed = True
            return [None]

    def _row(self, event: RenderedPage, page: EncodedPage | None) -> PageRow:
        document = event.document
        plan = self._plans.get(document.source)
        return PageRow(
            source=document.source, document=document.name, page=(event.number or 0) + 1, pages=event.total,
            digest=document.digest, size=document.size, modified=document.modified,
            live=plan is None or not plan.staged, encoded=page,
            thumbnail=event.thumbnail if self.table.settings.thumbnails else b"", problem=event.problem,
        )  # fmt: skip

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        self.table.append(rows)
        self._flushed = time.monotonic()

    def _note_missing(self, paths: Sequence[str | Path], present: set[str], prune: bool) -> None:
        roots = [source_of(p) for p in paths]
        for source, state in self._known.items():
            inside = any(source == r or source.startswith(r.rstrip(os.sep) + os.sep) for r in roots)
            if inside and source not in present and not os.path.exists(source):
                if prune:
                    self.table.delete(f"source = {quoted(source)}")
                    self.report.removed += 1
                else:
                    self.report.missing.append(state.document)


def kept_note(problem: str, state: DocumentState | None) -> str:
    """The problem, and that an earlier version stays searchable."""
    return f"{problem}; the version indexed before is kept" if state is not None and state.have else problem
