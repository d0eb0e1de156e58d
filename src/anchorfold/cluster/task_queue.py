"""Task queue of a run: creates tasks and converts their results to events for the committer.

Independent of Ray: the worker pool assigns tasks and detects lost ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anchorfold.cluster.worker_messages import DocumentPart, PartResult, TaskResult
from anchorfold.documents.formats import CHANGED, FileIdentity
from anchorfold.documents.render_events import DocumentFinished, PageFailed, RenderRequest
from anchorfold.ingestion.encoded_pages import EncodingFailed, PageEncoded, PageEvent

MAX_FAILURES = 3  # of one part before its document is skipped
MIN_RANGE_PAGES = 4


@dataclass
class Attempt:
    """A part of a document and how often it failed; `suspect` if the part may have caused that."""

    part: DocumentPart
    failures: int = 0
    suspect: bool = False


@dataclass(frozen=True)
class Task:
    """Parts of documents that one worker encodes; a suspect part is sent alone."""

    attempts: Sequence[Attempt]

    @property
    def parts(self) -> list[DocumentPart]:
        """Parts to send to the worker."""
        return [attempt.part for attempt in self.attempts]

    @property
    def exclusive(self) -> bool:
        """Whether the worker must run no other task, so that its death can be attributed to this one."""
        return self.attempts[0].suspect


@dataclass
class _OpenDocument:
    """A document in progress with `open_parts` unfinished parts."""

    request: RenderRequest
    identity: FileIdentity | None = None
    total: int = 0
    open_parts: int = 1
    problem: str | None = None


class TaskQueue:
    """Task queue over the documents of a run.

    Args:
        requests: documents to read, with their stored pages.
        pages: maximum pages per task.
    """

    def __init__(self, requests: Iterable[RenderRequest], pages: int) -> None:
        self.pages = pages
        self._documents = {request.document.source: _OpenDocument(request) for request in requests}
        documents = [document.request for document in self._documents.values()]  # each once
        self._new = deque(Attempt(DocumentPart(request.document, None, request.stored)) for request in documents)
        self._ranges: deque[Attempt] = deque()  # of documents with a known page count
        self._suspects: deque[Attempt] = deque()

    @property
    def unfinished(self) -> bool:
        """Whether any document is unfinished."""
        return bool(self._documents)

    def next_task(self, workers: int, idle: bool) -> Task | None:
        """Return the next task for one of `workers` workers, None if there is none; suspects need an idle one."""
        if idle and self._suspects:
            return Task([self._suspects.popleft()])
        if self._ranges:
            return Task([self._ranges.popleft()])
        if self._new:
            # Batch small documents while enough tasks remain for all workers.
            count = min(self.pages, math.ceil(len(self._new) / (2 * workers)))
            return Task([self._new.popleft() for _ in range(count)])
        return None

    def complete(self, task: Task, result: TaskResult, workers: int) -> list[PageEvent]:
        """Return the events of a completed task."""
        done = len(result.results)
        self._new.extendleft(reversed(task.attempts[done:]))
        pages = sum(len(part.packed.numbers) for part in result.results if part.packed is not None)
        seconds = result.seconds / max(pages, 1)
        events: list[PageEvent] = []
        for attempt, part_result in zip(task.attempts[:done], result.results, strict=True):
            events += self._part_done(attempt.part, part_result, seconds, workers)
        return events

    def fail(self, task: Task, reason: str, worker_died: bool) -> list[PageEvent]:
        """Requeue a lost task; documents of parts that failed `MAX_FAILURES` times are skipped.

        Args:
            task: the lost task.
            reason: problem to report for skipped documents.
            worker_died: whether the worker died. Otherwise one part failed, and the other parts may be valid.
        """
        events: list[PageEvent] = []
        for attempt in task.attempts:
            attempt.suspect = True
            attempt.failures += worker_died or len(task.attempts) == 1
            if attempt.failures < MAX_FAILURES:
                self._suspects.append(attempt)
            else:
                open_document = self._documents[attempt.part.document.source]
                self._cancel(open_document, reason)
                events += self._close_part(open_document)
        return events

    def _part_done(self, part: DocumentPart, result: PartResult, seconds: float, workers: int) -> list[PageEvent]:
        document = part.document
        open_document = self._documents[document.source]
        events: list[PageEvent] = []
        if open_document.identity is None and result.identity is not None:
            open_document.identity, open_document.total = result.identity, result.total
        identity, total = open_document.identity, open_document.total
        if identity is not None and result.identity is not None and identity.digest != result.identity.digest:
            self._cancel(open_document, CHANGED)  # these pages belong to another version
            return events + self._close_part(open_document)
        if identity is not None:
            for number, page, thumbnail, text in result.packed.unpack() if result.packed is not None else ():
                events.append(PageEncoded(document, identity, number, total, page, thumbnail, seconds, text))
            for missing in result.problems:
                events.append(
                    EncodingFailed(document, identity, missing.number, missing.problem)
                    if missing.retry
                    else PageFailed(document, identity, missing.number, total, missing.problem)
                )
        if result.problem is not None:
            self._cancel(open_document, result.problem)
        elif open_document.problem is None and result.remaining:
            size = min(self.pages, max(MIN_RANGE_PAGES, math.ceil(len(result.remaining) / (2 * workers))))
            ranges = [tuple(result.remaining[first : first + size]) for first in range(0, len(result.remaining), size)]
            self._ranges.extend(Attempt(DocumentPart(document, pages)) for pages in ranges)
            open_document.open_parts += len(ranges)
        return events + self._close_part(open_document)

    def _cancel(self, open_document: _OpenDocument, reason: str) -> None:
        """Cancel the queued parts of a document; running parts are awaited."""
        open_document.problem = open_document.problem or reason
        for queue in (self._ranges, self._suspects):
            others = [attempt for attempt in queue if attempt.part.document != open_document.request.document]
            open_document.open_parts -= len(queue) - len(others)
            queue.clear()
            queue.extend(others)

    def _close_part(self, open_document: _OpenDocument) -> list[PageEvent]:
        open_document.open_parts -= 1
        if open_document.open_parts:
            return []
        document = open_document.request.document
        del self._documents[document.source]
        return [DocumentFinished(document, open_document.identity, open_document.problem)]
