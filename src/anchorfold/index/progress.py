"""What a run of indexing did, and how far it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

ENCODING, READING_TEXT = "encoding", "reading text"  # stages of a run


@dataclass
class AddReport:
    """What a run did. `pages`, `vectors` and `full_vectors` are those written in this run; seconds are wall time.

    `described` documents were there already and got other metadata; `unmatched` rows of its table mean no document.
    `ignored` counts files of unsupported kinds in the listed folders by extension.

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
    texts: int = 0  # of pages that were stored before without their text
    skipped: list[tuple[str, str]] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    encode_seconds: float = 0.0
    interrupted: bool = False
    described: int = 0
    unmatched: list[str] = field(default_factory=list)


@dataclass
class WorkerProgress:
    """A worker of a cluster: pages that it encoded in so many seconds; `gone` if it died."""

    name: str
    pages: int = 0
    seconds: float = 0.0
    gone: bool = False


@dataclass
class Progress:
    """How far a run is. `share` goes from 0 to 1 with the pages that are done or need not be done.

    `stage` is "encoding", or "reading text" while the text of pages stored earlier is read. Each stage has counts and a
    share of its own. `workers` are those of a cluster, if one encodes.

    >>> report = index.add("reports", progress=lambda progress: print(f"{progress.share:.0%}"))
    100%
    """

    pages: int = 0
    documents: int = 0
    of_documents: int = 0
    share: float = 0.0
    current: str = ""
    workers: Sequence[WorkerProgress] = ()
    stage: str = ENCODING


@dataclass
class Share:
    """The share of a run that is done, by pages; those of documents that were not counted yet are guessed."""

    progress: Progress
    counts: dict[str, int] = field(default_factory=dict)  # pages of a document by its source
    counted: int = 0  # their sum
    begun: dict[str, int] = field(default_factory=dict)  # pages that are done of documents that are not
    done: float = 0.0  # pages of all documents

    def count(self, source: str, pages: int) -> None:
        """A document has so many pages."""
        self.counted += pages - self.counts.get(source, 0)
        self.counts[source] = pages

    def advance(self, source: str, stored: int) -> None:
        """One more page of a document is done, of which so many were stored before."""
        if source not in self.begun:
            self.begun[source] = stored
            self.done += stored
        self.begun[source] += 1
        self.done += 1
        self._show()

    def finish(self, source: str) -> None:
        """A document is done."""
        self.progress.documents = min(self.progress.documents + 1, self.progress.of_documents)
        self.done += self.counts.get(source, self._mean()) - self.begun.pop(source, 0)
        self._show()

    def _show(self) -> None:
        total = self.counted + self._mean() * (self.progress.of_documents - len(self.counts))
        self.progress.share = max(self.progress.share, min(self.done / max(total, 1.0), 1.0))

    def _mean(self) -> float:
        return self.counted / len(self.counts) if self.counts else 1.0
