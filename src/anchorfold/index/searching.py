"""Visual search of an embedded index: the newest commit kept in memory between queries, filters, and hits."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.index.candidate_files import open_candidates
from anchorfold.index.filters.conditions import Parsed, columns_of
from anchorfold.index.hits import EVERYTHING, Hit, PageKey, Selection
from anchorfold.index.live import LivePages
from anchorfold.index.scan import Scanner
from anchorfold.index.selection import as_names, selector
from anchorfold.index.store.facets import shown_metadata
from anchorfold.index.store.filter_sql import TRUE, Condition, compile_filter, page_condition, protected
from anchorfold.index.store.schema import PAGE_BITS, page_id, public_page_id
from anchorfold.index.store.snapshot import Snapshot
from anchorfold.index.store.sqlite_store import SqliteStore
from anchorfold.index.threads import ForkSafeLock

T = TypeVar("T")
MASKS = 16  # filters whose pages are remembered


class PageSearch:
    """Searches the newest commit of a store. Thread-safe."""

    searched = 1.0  # share of all pages that the last search scanned

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self._scanner: Scanner | None = None
        self._lock = ForkSafeLock()
        self._masks: dict[object, np.ndarray] = {}

    def scanner(self, snapshot: Snapshot) -> Scanner:
        """The scanner of a commit; vector files that are open already stay open."""
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
                return None  # another thread has loaded a later commit: start again with that one
            return (function(snapshot, self.scanner(snapshot)),)

        if (result := self.store.read(call)) is not None:
            return result[0]
        return self.store.read(lambda snapshot: function(snapshot, self.scanner(snapshot)))  # or it was restored

    def hits(
        self,
        queries: Sequence[Any],
        top: int,
        selection: Selection = EVERYTHING,
        exact: bool | None = None,
        candidates: int | None = None,
    ) -> list[list[Hit]]:
        """The best pages for each query, `(tokens, d)` arrays or tensors; the options are those of `Index.search`."""

        def search(snapshot: Snapshot, scanner: Scanner) -> list[list[Hit]]:
            allowed = self.allowed(snapshot, scanner.live, selection)
            rankings = scanner.top(queries, top, allowed, exact, candidates)
            return visual_hits(snapshot, scanner.live, rankings, selection.public)

        return self.with_scanner(search)

    def scores(self, query: Any, pages: Sequence[PageKey]) -> dict[PageKey, float]:
        """MaxSim scores of some pages; pages that no longer exist are left out."""

        def score(snapshot: Snapshot, scanner: Scanner) -> dict[PageKey, float]:
            keys = {identity: key for key, identity in page_ids(snapshot, pages).items()}
            rows = scanner.live.rows_of(np.array(sorted(keys), np.int64))
            rows = np.sort(rows[rows >= 0])
            best = scanner.best_of_some(query, rows, len(rows))
            numbers = scanner.live.identities(np.array([row for row, _ in best], np.int64)).tolist()
            return {keys[number]: value for number, (_, value) in zip(numbers, best, strict=True)}

        return self.with_scanner(score)

    def allowed(self, snapshot: Snapshot, live: LivePages, selection: Selection) -> np.ndarray | None:
        """`(rows,)` true for pages of a selection; None for all.

        Raises:
            AnchorFoldError: no document has such a name.
            FilterError: the filter is wrong.
        """
        if selection.documents is None and selection.where is None:
            return None
        key = (live.version, _hashable(selection))
        with self._lock:
            if key in self._masks:
                return self._masks[key]
        mask: np.ndarray | None = None
        if selection.documents is not None:
            versions = selected_versions(snapshot, selection.documents, selection.public)
            mask = live.of_versions(np.array(versions, np.int64)) & live.allowed
            if not mask.any():
                names = ", ".join(as_names(selection.documents))
                raise AnchorFoldError(f"{snapshot.folder} contains no document that matches {names}.")
        if selection.where is not None:
            parsed = _parsed(selection.where, snapshot)
            matching = self._matching(snapshot, live, parsed, selection.public)
            mask = matching if mask is None else mask & matching
        assert mask is not None
        with self._lock:
            while len(self._masks) >= MASKS:
                del self._masks[next(iter(self._masks))]
            self._masks[key] = mask
        return mask

    @staticmethod
    def _matching(snapshot: Snapshot, live: LivePages, parsed: Parsed, public: bool) -> np.ndarray:
        by_page = "page" in columns_of(parsed)
        condition = compile_filter(parsed, public)
        view, column = ("live_pages", "page_id") if by_page else ("live_documents", "version_id")
        with protected(snapshot.connection):
            rows = snapshot.connection.execute(
                f"SELECT {column} FROM {view} WHERE {condition.sql}", condition.parameters
            )
            found = np.fromiter((number for (number,) in rows), np.int64)
        return live.of_pages(found) if by_page else live.of_versions(found)


def _parsed(where: str, snapshot: Snapshot) -> Parsed:
    from anchorfold.index.filters.where import parse_where  # imports sqlglot, which most searches do not need

    return parse_where(where, snapshot.columns)


def _hashable(selection: Selection) -> object:
    documents = selection.documents
    return (None if documents is None else tuple(as_names(documents)), selection.where, selection.public)


def selected_versions(snapshot: Snapshot, documents: str | Sequence[str], public: bool = False) -> list[int]:
    """Ids of the live versions of documents by name, path, folder or pattern; public names only if `public`."""
    known = snapshot.connection.execute("SELECT version_id, path, document, public_name FROM live_documents").fetchall()
    names = {version: (name, name) if public else (given, path) for version, path, given, name in known}
    selected = selector(documents, names.values())
    return [version for version, name in names.items() if selected(*name)]


def text_condition(snapshot: Snapshot, selection: Selection) -> Condition:
    """A selection as SQL on `page_id` and `version_id`."""
    condition = TRUE
    if selection.documents is not None:
        versions = selected_versions(snapshot, selection.documents, selection.public)
        if not versions:
            names = ", ".join(as_names(selection.documents))
            raise AnchorFoldError(f"{snapshot.folder} contains no document that matches {names}.")
        condition = Condition("version_id IN (SELECT value FROM json_each(?))", (json.dumps(versions),))
    if selection.where is not None:
        condition = condition & page_condition(_parsed(selection.where, snapshot), selection.public)
    return condition


def visual_hits(
    snapshot: Snapshot, live: LivePages, rankings: Sequence[Sequence[tuple[int, float]]], public: bool = False
) -> list[list[Hit]]:
    """Hits from rows and scores."""
    scored = []
    for ranking in rankings:
        identities = live.identities(np.array([row for row, _ in ranking], np.int64)).tolist()
        scored.append([(identity, score) for identity, (_, score) in zip(identities, ranking, strict=True)])
    hits = page_hits(snapshot, [identity for ranking in scored for identity, _ in ranking], public)
    return [[replace(hits[i], score=score, visual=score) for i, score in ranking] for ranking in scored]


def page_hits(snapshot: Snapshot, identities: Sequence[int], public: bool = False) -> dict[int, Hit]:
    """Hits without scores, by page id."""
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
    """Ids of live pages; pages of documents that no longer exist are left out."""
    live = "SELECT version_id FROM live_documents WHERE path = ?"
    versions = {source: snapshot.connection.execute(live, (source,)).fetchone() for source in {s for s, _ in pages}}
    return {(s, n): page_id(found[0], n) for s, n in pages if (found := versions[s]) is not None}
