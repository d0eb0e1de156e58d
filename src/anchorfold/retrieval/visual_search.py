"""Visual search of an embedded index: caching of the newest commit, filters, and hits."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.retrieval.candidate_files import open_candidates
from anchorfold.retrieval.live_pages import LivePages
from anchorfold.retrieval.scan import Scanner
from anchorfold.storage.filter_sql import TRUE, SqlCondition, compile_filter, protected
from anchorfold.storage.hits import Hit, PageKey, SearchRequest, as_names, selector
from anchorfold.storage.info import shown_metadata
from anchorfold.storage.schema import PAGE_BITS, page_id, public_page_id
from anchorfold.storage.snapshot import Snapshot
from anchorfold.storage.sqlite_store import SqliteStore
from anchorfold.storage.threads import ForkSafeLock

T = TypeVar("T")
MASKS = 16  # filters whose masks are cached


class PageSearch:
    """Visual search of the newest commit of a store. Thread-safe."""

    searched = 1.0  # fraction of the pages that the last search scanned

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self._scanner: Scanner | None = None
        self._lock = ForkSafeLock()
        self._masks: dict[object, np.ndarray] = {}

    def scanner(self, snapshot: Snapshot) -> Scanner:
        """Return the scanner of a commit; vector files that are already open are reused."""
        with self._lock:
            if self._scanner is None or self._scanner.live.version != snapshot.version:
                live = LivePages.of(snapshot)
                self._scanner = Scanner(live, open_candidates(snapshot, live))
                self._masks = {}
            return self._scanner

    def with_scanner(self, function: Callable[[Snapshot, Scanner], T]) -> T:
        """Call a function with the newest commit and its scanner."""

        def call(snapshot: Snapshot) -> tuple[T] | None:
            scanner = self._scanner
            if scanner is not None and scanner.live.version.is_after(snapshot.version):
                return None  # another thread has loaded a later commit: retry with that one
            return (function(snapshot, self.scanner(snapshot)),)

        if (result := self.store.read(call)) is not None:
            return result[0]
        return self.store.read(lambda snapshot: function(snapshot, self.scanner(snapshot)))  # or it was restored

    def newest_scanner(self) -> Scanner:
        """Return the scanner of the newest commit; opens its vector files."""
        return self.with_scanner(lambda _, scanner: scanner)

    def hits(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the best pages for each of `request.vectors`."""

        def search(snapshot: Snapshot, scanner: Scanner) -> list[list[Hit]]:
            allowed = self.allowed(snapshot, scanner.live, request)
            rankings = scanner.top_k(request.vectors, request.top_k, allowed, request.exact, request.candidates)
            return visual_hits(snapshot, scanner.live, rankings, request.public)

        return self.with_scanner(search)

    def scores(self, query: Any, pages: Sequence[PageKey]) -> dict[PageKey, float]:
        """Return the MaxSim scores of the given pages; deleted pages are omitted."""

        def score(snapshot: Snapshot, scanner: Scanner) -> dict[PageKey, float]:
            keys = {identity: key for key, identity in page_ids(snapshot, pages).items()}
            rows = scanner.live.rows_of(np.array(sorted(keys), np.int64))
            rows = np.sort(rows[rows >= 0])
            (best,) = scanner.best_pages([query], rows, len(rows))
            numbers = scanner.live.identities(np.array([row for row, _ in best], np.int64)).tolist()
            return {keys[number]: value for number, (_, value) in zip(numbers, best, strict=True)}

        return self.with_scanner(score)

    def allowed(self, snapshot: Snapshot, live: LivePages, request: SearchRequest) -> np.ndarray | None:
        """Return a `(rows,)` mask of the pages that the filters of a request allow; None for all.

        Raises:
            AnchorFoldError: no document matches the given names.
            FilterError: the filter is invalid.
        """
        if request.documents is None and request.where is None:
            return None
        key = (live.version, _hashable(request))
        with self._lock:
            if key in self._masks:
                return self._masks[key]
        mask: np.ndarray | None = None
        if request.documents is not None:
            versions = selected_versions(snapshot, request.documents, request.public)
            mask = live.of_versions(np.array(versions, np.int64)) & live.allowed
            if not mask.any():
                names = ", ".join(as_names(request.documents))
                raise AnchorFoldError(f"{snapshot.folder} contains no document that matches {names}.")
        if request.where is not None:
            column, query = where_query(snapshot, request.where, request.public)
            if column == "page_id":
                snapshot.verify_pages(live.identities(live.rows))
            with protected(snapshot.connection):
                rows = snapshot.connection.execute(query.sql, query.parameters)
                ids = np.fromiter((number for (number,) in rows), np.int64)
            matching = live.of_pages(ids) if column == "page_id" else live.of_versions(ids)
            mask = matching if mask is None else mask & matching
        assert mask is not None
        with self._lock:
            while len(self._masks) >= MASKS:
                del self._masks[next(iter(self._masks))]
            self._masks[key] = mask
        return mask


def where_query(snapshot: Snapshot, where: str, public: bool = False) -> tuple[str, SqlCondition]:
    """Return the result column (`page_id` or `version_id`) and a query for the live pages that match a filter."""
    from anchorfold.filters.where import parse_where  # imports sqlglot, which most searches do not need

    parsed = parse_where(where, snapshot.columns)
    snapshot.verify_documents()
    condition = compile_filter(parsed, public)
    view, column = ("live_pages", "page_id") if "page" in parsed.columns() else ("live_documents", "version_id")
    return column, SqlCondition(f"SELECT {column} FROM {view} WHERE {condition.sql}", condition.parameters)


def _hashable(request: SearchRequest) -> object:
    documents = request.documents
    return (None if documents is None else tuple(as_names(documents)), request.where, request.public)


def selected_versions(snapshot: Snapshot, documents: str | Sequence[str], public: bool = False) -> list[int]:
    """Return the ids of live document versions by name, path, folder or pattern; only public names if `public`."""
    snapshot.verify_documents()
    known = snapshot.connection.execute("SELECT version_id, path, document, public_name FROM live_documents").fetchall()
    names = {version: (name, name) if public else (given, path) for version, path, given, name in known}
    selected = selector(documents, names.values())
    return [version for version, name in names.items() if selected(*name)]


def text_condition(snapshot: Snapshot, request: SearchRequest) -> SqlCondition:
    """Return the filters of a request as SQL on `page_id` and `version_id`."""
    condition = TRUE
    if request.documents is not None:
        versions = selected_versions(snapshot, request.documents, request.public)
        if not versions:
            names = ", ".join(as_names(request.documents))
            raise AnchorFoldError(f"{snapshot.folder} contains no document that matches {names}.")
        condition = SqlCondition("version_id IN (SELECT value FROM json_each(?))", (json.dumps(versions),))
    if request.where is not None:
        column, query = where_query(snapshot, request.where, request.public)
        condition = condition & SqlCondition(f"{column} IN ({query.sql})", query.parameters)
    return condition


def visual_hits(
    snapshot: Snapshot, live: LivePages, rankings: Sequence[Sequence[tuple[int, float]]], public: bool = False
) -> list[list[Hit]]:
    """Return hits for rankings of (row, score)."""
    scored = []
    for ranking in rankings:
        identities = live.identities(np.array([row for row, _ in ranking], np.int64)).tolist()
        scored.append([(identity, score) for identity, (_, score) in zip(identities, ranking, strict=True)])
    hits = page_hits(snapshot, [identity for ranking in scored for identity, _ in ranking], public)
    return [[replace(hits[i], score=score, visual=score) for i, score in ranking] for ranking in scored]


def page_hits(snapshot: Snapshot, identities: Sequence[int], public: bool = False) -> dict[int, Hit]:
    """Return hits without scores by page id."""
    versions = snapshot.versions_by_id(identity >> PAGE_BITS for identity in identities)
    types, hits = snapshot.columns, {}
    for identity in identities:
        version, page = versions.get(identity >> PAGE_BITS), identity & ((1 << PAGE_BITS) - 1)
        if version is None:
            raise snapshot.fault("the entry of a document is missing")
        hits[identity] = Hit(
            version.name, page, 0.0, version.source, metadata=shown_metadata(version, types, public),
            public_name=version.public_name, page_id=public_page_id(version.document_id, page),
        )  # fmt: skip
    return hits


def page_ids(snapshot: Snapshot, pages: Sequence[PageKey]) -> dict[PageKey, int]:
    """Return the ids of live pages; pages of deleted documents are omitted."""
    live = "SELECT version_id FROM live_documents WHERE path = ?"
    versions = {source: snapshot.connection.execute(live, (source,)).fetchone() for source in {s for s, _ in pages}}
    return {(s, n): page_id(row[0], n) for s, n in pages if (row := versions[s]) is not None}
