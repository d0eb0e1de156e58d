"""What a run of indexing did, and how far it is."""

from __future__ import annotations

from dataclasses import dataclass, field


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
class Share:
    """The share of a run that is done, by pages; those of documents that were not counted yet are guessed."""

    progress: Progress
    counts: dict[str, int] = field(default_factory=dict)  # pages of a document by its source
    done: float = 0.0  # pages of finished documents

    def finish(self, source: str) -> None:
        """A document is done."""
        self.progress.documents = min(self.progress.documents + 1, self.progress.of_documents)
        self.done += self.counts.get(source, self._mean())
        self.show(0)

    def show(self, further: int) -> None:
        """So many pages of the present document are done as well."""
        total = sum(self.counts.values()) + self._mean() * (self.progress.of_documents - len(self.counts))
        self.progress.share = max(self.progress.share, min((self.done + further) / max(total, 1.0), 1.0))

    def _mean(self) -> float:
        return sum(self.counts.values()) / len(self.counts) if self.counts else 1.0
