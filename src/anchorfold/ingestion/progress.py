"""Progress and report of an indexing run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anchorfold.documents.files import Document

ENCODING, READING_TEXT = "encoding", "reading text"  # stages of a run


@dataclass
class AddReport:
    """Report of a run. `pages`, `vectors` and `full_vectors` count what the run wrote; `seconds` is wall time.

    `metadata_updated` counts existing documents with new metadata, `unmatched` lists metadata rows without a document.
    `ignored` counts files of unsupported types in the listed folders by extension.

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
    texts: int = 0  # texts added to pages that were stored without text
    skipped: list[tuple[str, str]] = field(default_factory=list)
    ignored: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    encode_seconds: float = 0.0
    interrupted: bool = False
    metadata_updated: int = 0
    unmatched: list[str] = field(default_factory=list)


@dataclass
class WorkerProgress:
    """Progress of a cluster worker: encoded pages and elapsed seconds; `dead` if it ended early."""

    name: str
    pages: int = 0
    seconds: float = 0.0
    dead: bool = False


@dataclass
class Progress:
    """Progress of a run. `share` is the completed fraction, from 0 to 1, including pages that are skipped.

    `stage` is "encoding", or "reading text" while missing text of stored pages is read. Each stage has its own counts
    and share. `workers` is the progress of the cluster workers, if any.

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


PDF_PAGE_BYTES = 50_000


class ProgressEstimate:
    """Updates the completed share of a run, weighting each document by its expected number of pages.

    Args:
        progress: the progress to update.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._total = self._done = 0.0  # pages
        self._begun: dict[str, float] = {}  # completed pages of unfinished documents, by source

    def start(self, documents: Sequence[Document]) -> None:
        """Set the documents of the run."""
        self.progress.of_documents = len(documents)
        self._total = float(sum(_weight(document) for document in documents))

    def advance(self, document: Document, pages: int, stored: int) -> None:
        """Count one more page of a document with `pages` pages, of which `stored` were indexed before the run."""
        page = _weight(document) / pages
        self._add(document, page if document.source in self._begun else (stored + 1) * page)

    def finish(self, document: Document) -> None:
        """Count all remaining pages of a document."""
        self.progress.documents = min(self.progress.documents + 1, self.progress.of_documents)
        self._add(document, _weight(document) - self._begun.get(document.source, 0.0))
        del self._begun[document.source]

    def _add(self, document: Document, size: float) -> None:
        self._begun[document.source] = self._begun.get(document.source, 0.0) + size
        self._done += size
        self.progress.share = max(self.progress.share, min(self._done / max(self._total, 1.0), 1.0))


def _weight(document: Document) -> float:
    """Return the expected number of pages: images have few, a page of a PDF takes about 50 kB."""
    return max(document.size / PDF_PAGE_BYTES, 1.0) if document.source.lower().endswith(".pdf") else 1.0
