"""Documents of an index in Qdrant as they are stored: their records, their state and which version is visible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from anchorfold.databases.qdrant_engine import QdrantEngine, all_of, matches, models
from anchorfold.databases.qdrant_head import Head, HeadPoint, Leases
from anchorfold.databases.qdrant_layout import DocumentRecord, VersionRecord, of_type, pages_of
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.records import DocumentState, Version

T = TypeVar("T")
NAMES = 500  # documents per request


class QdrantRecords:
    """The documents of an index. Thread-safe for readers."""

    def __init__(self, engine: QdrantEngine) -> None:
        self.engine, self.head, self.leases = engine, HeadPoint(engine), Leases(engine)
        self.settings = IndexSettings.from_dict(dict(self.head.read().settings))
        self._cached: tuple[Version, dict[str, DocumentRecord]] | None = None

    @property
    def version(self) -> Version:
        """The newest commit."""
        return self.head.read().version

    def refresh(self) -> Version:
        """Re-read the settings."""
        head = self.head.read()
        settings = IndexSettings.from_dict(dict(head.settings))
        if settings != self.settings:
            self.settings = settings
        return head.version

    # Reading.

    def records(self, sources: Sequence[str] | None = None) -> tuple[dict[str, DocumentRecord], Head]:
        """Return documents by path and the head, which is read last: it decides which versions are visible."""
        if sources is None:
            before, known = self.head.read(), self._cached
            if known is None or known[0] != before.version:
                points = list(self.engine.scroll(all_of(of_type("document"))))
                known = before.version, {r.source: r for r in (DocumentRecord.of(p.payload) for p in points)}
                self._cached = known
            return dict(known[1]), self.head.read()
        records: dict[str, DocumentRecord] = {}
        for names in groups(dict.fromkeys(sources)):
            for point in self.engine.scroll(all_of(of_type("document"), matches("source", names))):
                record = DocumentRecord.of(point.payload)
                records[record.source] = record
        return records, self.head.read()

    def live_documents(self) -> tuple[dict[str, tuple[DocumentRecord, VersionRecord]], Head]:
        """Return all documents with their live versions by path."""
        records, head = self.records()
        live = ((source, record, live_version(record, head)) for source, record in records.items())
        return {source: (record, version) for source, record, version in live if version is not None}, head

    def documents(self) -> dict[str, DocumentState]:
        """Return the state of every document by path."""
        (records, head), states = self.records(), {}
        total = sum(len(record.versions) for record in records.values())
        counts = self.engine.facet("version", all_of(of_type("page")), total + NAMES) if total else {}
        for source, record in records.items():
            state, live = DocumentState(record.document), live_version(record, head)
            if live is not None:
                state.digest, state.size, state.modified, state.pages = (
                    live.digest,
                    live.size,
                    live.modified,
                    live.pages,
                )
                state.stored = counts.get(live.version, 0)
            for version in record.versions:
                if version.version in head.staged and counts.get(version.version):
                    state.staged[version.digest] = counts[version.version]
            if live is not None or state.staged:
                states[source] = state
        return states

    def stored_pages(self, sources: Sequence[str]) -> dict[str, dict[str, set[int]]]:
        """Return numbers of stored pages by path and digest."""
        records, head = self.records(sources)
        versions = {
            version.version: (source, version.digest)
            for source, record in records.items()
            for version in record.versions
            if version.version not in head.dead
        }
        stored: dict[str, dict[str, set[int]]] = {}
        for keys in groups(versions):
            for point in self.engine.scroll(pages_of(keys), ["version", "page"]):
                source, digest = versions[point.payload["version"]]
                stored.setdefault(source, {}).setdefault(digest, set()).add(point.payload["page"])
        return stored


def groups(values: Iterable[T]) -> Iterator[list[T]]:
    """Values in groups for one request each."""
    rest = iter(values)
    while group := list(islice(rest, NAMES)):
        yield group


def live_version(record: DocumentRecord, head: Head) -> VersionRecord | None:
    """Return the newest visible version of a document."""
    hidden = (head.staged, head.dead)
    return next((v for v in reversed(record.versions) if not any(v.version in listed for listed in hidden)), None)


def is_empty(path: str) -> Any:
    """Return a condition that a field has no value."""
    return models.IsEmptyCondition(is_empty=models.PayloadField(key=path))


def readable_pages() -> list[Any]:
    """Return conditions for pages with vectors, of visible and of hidden versions."""
    return [of_type("page"), models.FieldCondition(key="vectors", range=models.Range(gt=0))]
