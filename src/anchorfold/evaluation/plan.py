"""What a run will do and need, before it starts; and how long it has left, while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from anchorfold.evaluation.corpus import Corpus

SURE = 8  # pages after which an estimate is given


@dataclass(frozen=True)
class Plan:
    """One corpus: `pages` x `queries` scores of `methods`, of `bytes` on disk."""

    corpus: str
    pages: int
    queries: int
    methods: int

    @classmethod
    def of(cls, corpus: Corpus, methods: int) -> Plan:
        """Of a corpus; none of its pages is rendered."""
        return cls(corpus.name, len(corpus.names()), len(corpus.queries), methods)

    @property
    def bytes(self) -> int:
        """Scores in float32, and a count of vectors, of every page and method."""
        return 4 * self.methods * self.pages * (self.queries + 1)

    def __str__(self) -> str:
        return (
            f"{self.corpus}: {self.pages:,} pages x {self.queries:,} queries x {self.methods} methods, "
            f"{self.bytes / 1e6:,.0f} MB of scores"
        )


def progress_line(plan: Plan, clock: Callable[[], float] = time.monotonic) -> Callable[[int], str]:
    """A function from the number of pages done to a line that says so, and how long the rest will take."""
    first: list[tuple[int, float]] = []

    def line(done: int) -> str:
        now = clock()
        if not first:
            first.append((done, now))  # pages of an earlier run, and the model's warm-up, say nothing of the pace
        before, began = first[0]
        text = f"{plan.corpus}: {done:,} of {plan.pages:,} pages"
        if done - before < SURE or now <= began:
            return text
        pace = (done - before) / (now - began)
        return f"{text}, {pace:.2g} a second, {duration((plan.pages - done) / pace)} left"

    return line


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(40), duration(1500), duration(9000)
    ('about 40 s', 'about 25 min', 'about 2.5 h')
    """
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"
