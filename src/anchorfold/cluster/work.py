"""What is left to do of some documents, and what comes of it: tasks out, results in, events for the committer.

Knows nothing of Ray: who does a task, and how it is lost, is the crew's.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from anchorfold.cluster.tasks import Part, PartResult, TaskResult
from anchorfold.documents.content import CHANGED, FileIdentity
from anchorfold.documents.rendering import DocumentFinished, PageFailed, PagesCounted, Request
from anchorfold.index.source import PageEncoded, PageEvent, PageLeftOut

LOSSES = 3  # of one part of a document: then it is given up
FEWEST_PAGES = 4  # of a range


@dataclass
class Attempt:
    """A part of a document, and how often it was lost; `suspect` if that may be its own doing."""

    part: Part
    losses: int = 0
    suspect: bool = False


@dataclass(frozen=True)
class Task:
    """What a worker is sent at once; a suspect goes alone."""

    attempts: Sequence[Attempt]

    @property
    def parts(self) -> list[Part]:
        """What the worker needs to know."""
        return [attempt.part for attempt in self.attempts]

    @property
    def alone(self) -> bool:
        """Whether the worker must have nothing else to do: if it dies, this was the cause."""
        return self.attempts[0].suspect


@dataclass
class _Reading:
    """A document whose parts are on their way; `open_parts` of them."""

    request: Request
    identity: FileIdentity | None = None
    total: int = 0
    open_parts: int = 1
    problem: str | None = None


class Work:
    """The documents of a run.

    Args:
        requests: the documents, without the pages that are stored.
        pages: of a task, at most.
    """

    def __init__(self, requests: Iterable[Request], pages: int) -> None:
        self.pages = pages
        self._readings = {request.document.source: _Reading(request) for request in requests}
        self._new = deque(Attempt(Part(r.request.document, None, r.request.stored)) for r in self._readings.values())
        self._ranges: deque[Attempt] = deque()  # of documents that were opened
        self._suspects: deque[Attempt] = deque()

    @property
    def left(self) -> bool:
        """Whether any document is not finished."""
        return bool(self._readings)

    def next_task(self, workers: int, idle: bool) -> Task | None:
        """What to do next, for a worker that is idle or not, one of so many; None if nothing waits for such a one."""
        if idle and self._suspects:
            return Task([self._suspects.popleft()])
        if self._ranges:
            return Task([self._ranges.popleft()])
        if self._new:
            # Small documents go together, as far as there is enough for everybody.
            count = min(self.pages, math.ceil(len(self._new) / (2 * workers)))
            return Task([self._new.popleft() for _ in range(count)])
        return None

    def take(self, task: Task, result: TaskResult, workers: int) -> list[PageEvent]:
        """A task was done."""
        done = len(result.results)
        self._new.extendleft(reversed(task.attempts[done:]))
        pages = sum(len(part.packed.numbers) for part in result.results if part.packed is not None)
        seconds = result.seconds / max(pages, 1)
        events: list[PageEvent] = []
        for attempt, part_result in zip(task.attempts[:done], result.results, strict=True):
            events += self._part_done(attempt.part, part_result, seconds, workers)
        return events

    def lose(self, task: Task, why: str, died: bool) -> list[PageEvent]:
        """A task was lost with its worker, or failed there; three times is once too often.

        Args:
            task: what was lost.
            why: the problem of a document that is given up.
            died: whether the worker died. Else one of several parts failed, and the others were only beside it.
        """
        events: list[PageEvent] = []
        for attempt in task.attempts:
            attempt.suspect = True
            attempt.losses += died or len(task.attempts) == 1
            if attempt.losses < LOSSES:
                self._suspects.append(attempt)
            else:
                reading = self._readings[attempt.part.document.source]
                self._give_up(reading, why)
                events += self._close_part(reading)
        return events

    def _part_done(self, part: Part, result: PartResult, seconds: float, workers: int) -> list[PageEvent]:
        document = part.document
        reading = self._readings[document.source]
        events: list[PageEvent] = []
        if reading.identity is None and result.identity is not None:
            reading.identity, reading.total = result.identity, result.total
            events.append(PagesCounted(document, result.total))
        identity, total = reading.identity, reading.total
        if identity is not None and result.identity is not None and identity.digest != result.identity.digest:
            self._give_up(reading, CHANGED)  # these pages are of another version
            return events + self._close_part(reading)
        if identity is not None:
            for number, page, thumbnail, text in result.packed.unpack() if result.packed is not None else ():
                events.append(PageEncoded(document, identity, number, total, page, thumbnail, seconds, text))
            for missing in result.problems:
                events.append(
                    PageLeftOut(document, identity, missing.number, missing.problem)
                    if missing.again
                    else PageFailed(document, identity, missing.number, total, missing.problem)
                )
        if result.problem is not None:
            self._give_up(reading, result.problem)
        elif reading.problem is None and result.rest:
            size = min(self.pages, max(FEWEST_PAGES, math.ceil(len(result.rest) / (2 * workers))))
            ranges = [tuple(result.rest[first : first + size]) for first in range(0, len(result.rest), size)]
            self._ranges.extend(Attempt(Part(document, pages)) for pages in ranges)
            reading.open_parts += len(ranges)
        return events + self._close_part(reading)

    def _give_up(self, reading: _Reading, why: str) -> None:
        """No further parts of a document are begun; those that are under way are waited for."""
        reading.problem = reading.problem or why
        for waiting in (self._ranges, self._suspects):
            others = [attempt for attempt in waiting if attempt.part.document != reading.request.document]
            reading.open_parts -= len(waiting) - len(others)
            waiting.clear()
            waiting.extend(others)

    def _close_part(self, reading: _Reading) -> list[PageEvent]:
        reading.open_parts -= 1
        if reading.open_parts:
            return []
        document = reading.request.document
        del self._readings[document.source]
        return [DocumentFinished(document, reading.identity, reading.problem)]
