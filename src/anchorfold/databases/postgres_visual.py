"""Visual search in PostgreSQL, scored by the kernels of the embedded index on fetched codes.

A process that searches repeatedly keeps the codes of all pages in memory and fetches only the documents that have
changed. Otherwise, posting lists select the pages whose codes are fetched.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from psycopg import errors

from anchorfold.databases.postgres_connection import Address, Connection
from anchorfold.databases.postgres_documents import PostgresDocuments
from anchorfold.databases.postgres_filter import FILTER_SECONDS, Condition, compile_filter
from anchorfold.databases.postgres_lists import DatabaseLists
from anchorfold.databases.postgres_page import VERSION_COLUMNS, document_version
from anchorfold.databases.postgres_vectors import (
    BY_ID,
    BY_VERSION,
    count_vectors,
    fetch_pages,
    page_ids,
    version_states,
)
from anchorfold.errors import AnchorFoldError, FilterError, InvalidArgumentError
from anchorfold.filters.values import BUILT_IN
from anchorfold.quantization.codec import Coding
from anchorfold.retrieval.candidates import FIRST_PAGES
from anchorfold.retrieval.fetched_pages import CachedPages, IdRanking, ListedPages, positions, refreshed
from anchorfold.retrieval.kernels import Tokens
from anchorfold.storage.hits import Hit, PageKey, SearchRequest, as_names, selector
from anchorfold.storage.info import shown_metadata
from anchorfold.storage.records import Version
from anchorfold.storage.schema import public_page_id
from anchorfold.storage.threads import ForkSafeLock

CANDIDATES = 1_000  # pages whose codes are fetched, at least
CACHE_VARIABLE, CACHE_MB = "ANCHORFOLD_CACHE_MB", 2_048  # of codes in memory, per index and process
SMALL_BYTES = 1 << 25  # codes that the first search of a process fetches
SCANNED_PAGES = 1_000  # pages in memory at a time, of an index beyond the limit


class PostgresVisual(PostgresDocuments):
    """Visual search of an index in a schema; each call reads one commit."""

    searched = 1.0  # a server that does not answer is an error

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._lock = ForkSafeLock()
        self._cache: CachedPages | None = None
        self._lists: DatabaseLists | None = None
        self._searches = 0
        self._too_large: Version | None = None  # a commit whose codes exceed the limit

    def warm_up(self) -> None:
        """Fetch the codes of all pages, if they fit into the cache."""
        self._searches += 1
        with self.connections.reading() as connection:
            self._cached(connection, retried=True)

    def columns(self) -> dict[str, str]:
        """Return types of the columns that a filter may use."""
        with self.connections.reading() as connection:
            return self._columns(connection)

    @staticmethod
    def _columns(connection: Connection) -> dict[str, str]:
        stored = connection.execute("SELECT name, type FROM metadata_columns ORDER BY name").fetchall()
        return {**BUILT_IN, **dict(stored)}

    # Which pages are searched.

    @contextmanager
    def selecting(self, request: SearchRequest) -> Iterator[tuple[Connection, Condition | None]]:
        """A transaction, and the filters of a request as a condition on `live_pages`; None without filters."""
        with self.connections.reading() as connection:
            parts, parameters = [], []
            if request.documents is not None:
                parts.append("version_id = ANY(%s)")
                parameters.append(self._selected_versions(connection, request))
            if request.where is not None:
                from anchorfold.filters.where import parse_where  # imports sqlglot

                connection.execute(f"SET LOCAL statement_timeout = '{FILTER_SECONDS}s'")
                types = self._columns(connection)
                text, values = compile_filter(parse_where(request.where, types), types, request.public)
                parts.append(f"({text})")
                parameters += values
            try:
                yield connection, (" AND ".join(parts), parameters) if parts else None
            except (errors.DataError, errors.ProgrammingError, errors.StatementTooComplex) as error:
                if request.where is None or isinstance(error, errors.UndefinedTable):
                    raise
                raise FilterError(f"the filter {request.where!r} cannot be evaluated: use a simpler one.") from error

    def _selected_versions(self, connection: Connection, request: SearchRequest) -> list[int]:
        assert request.documents is not None
        rows = connection.execute("SELECT version_id, path, document, public_name FROM live_documents").fetchall()
        names = {v: (public, public) if request.public else (name, path) for v, path, name, public in rows}
        selected = selector(request.documents, names.values())
        if not (versions := [version for version, name in names.items() if selected(*name)]):
            wanted = ", ".join(as_names(request.documents))
            raise AnchorFoldError(f"{self.location} contains no document that matches {wanted}.")
        return versions

    # The pages of a commit.

    def _cached(self, connection: Connection, retried: bool) -> CachedPages | None:
        """Return all pages of the commit that a connection reads; None if they are not to be kept in memory.

        Raises:
            OutdatedError: another thread has fetched a later commit.
        """
        version, settings, _ = self.read_info(connection)
        coding = settings.coding
        with self._lock:
            cached = self._cache
            if cached is not None and cached.version.index_id != version.index_id:
                cached = None  # the index was created again
            if version == self._too_large:
                return None
            if cached is not None and cached.version == version:
                return cached
            if cached is not None and cached.version.is_after(version) and not retried:
                raise OutdatedError
            states = version_states(connection)
            size = count_vectors(connection, BY_VERSION, list(states)) * coding.vector_bytes
            if size > (most := cache_bytes()):
                self._cache, self._too_large = None, version
                return None
            if cached is None and not self._searches and size > SMALL_BYTES:
                return None
            fetch = partial(fetch_pages, connection, self.location, coding, BY_VERSION)
            cached = refreshed(cached, version, coding, states, fetch, most)
            if len(cached.live.rows) >= FIRST_PAGES:
                lists = self._known_lists(connection, coding)
                if lists.centroids is not None and lists.blocks:
                    loaded, rows = lists.load(connection), [cached.rows_of(ids) for ids in lists.blocks.values()]
                    cached.scanner.candidates = ListedPages(len(cached.live), rows, lists.centroids, lambda _: loaded)
            self._cache = cached
            return cached

    def _known_lists(self, connection: Connection, coding: Coding) -> DatabaseLists:
        with self._lock:
            self._lists = DatabaseLists(connection, coding.components, self._lists)
            return self._lists

    # Visual search.

    def search_visual(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the best pages by MaxSim for each of `request.vectors`."""
        try:
            return self._search_visual(request, False)
        except OutdatedError:
            return self._search_visual(request, True)

    def _search_visual(self, request: SearchRequest, retried: bool) -> list[list[Hit]]:
        with self.selecting(request) as (connection, condition):
            allowed = None
            if condition is not None:
                allowed = page_ids(connection, condition)
                connection.execute("SET LOCAL statement_timeout = 0")  # the filter has been evaluated
            cached = self._cached(connection, retried)
            self._searches += 1
            if cached is not None:
                rankings = cached.top_k(request.vectors, request.top_k, allowed, request.exact, request.candidates)
            else:
                ids = page_ids(connection, None) if allowed is None else allowed
                rankings = self._fetched_rankings(connection, ids, request)
            return self._visual_hits(connection, rankings, request.public)

    def _fetched_rankings(self, connection: Connection, allowed: np.ndarray, request: SearchRequest) -> list[IdRanking]:
        """Return the best of pages, given by id, whose codes are fetched now."""
        coding = self.read_info(connection)[1].coding
        count = request.candidates or max(CANDIDATES, 4 * request.top_k)
        lists = None if request.exact or len(allowed) <= count else self._known_lists(connection, coding)
        if lists is None or lists.centroids is None:
            return self._scan(connection, coding, allowed, request.vectors, request.top_k)
        blocks = [positions(ids, allowed, np.arange(len(allowed))) for ids in lists.blocks.values()]
        listed = ListedPages(len(allowed), blocks, lists.centroids, partial(lists.fetch, connection))
        mask, rankings = np.ones(len(allowed), bool), []
        for query in request.vectors:
            chosen = listed.choose(Tokens.of([query], coding).values, mask, count)
            ids = allowed if len(chosen) < request.top_k else allowed[chosen]
            rankings += self._scan(connection, coding, ids, [query], request.top_k)
        return rankings

    def _scan(
        self, connection: Connection, coding: Coding, ids: np.ndarray, queries: Sequence[Any], top_k: int
    ) -> list[IdRanking]:
        """Fetch and score pages, in blocks."""
        best: list[IdRanking] = [[] for _ in queries]
        for start in range(0, len(ids), SCANNED_PAGES):
            block = fetch_pages(connection, self.location, coding, BY_ID, ids[start : start + SCANNED_PAGES].tolist())
            for at, ranking in enumerate(block.top_k(coding, queries, top_k)):
                best[at] = sorted(best[at] + ranking, key=lambda page: (-page[1], page[0]))[:top_k]
        return best

    def _visual_hits(self, connection: Connection, rankings: Sequence[IdRanking], public: bool) -> list[list[Hit]]:
        hits = self._hits(connection, [identity for ranking in rankings for identity, _ in ranking], public)
        return [[replace(hits[i], score=score, visual=score) for i, score in ranking] for ranking in rankings]

    def _hits(self, connection: Connection, identities: Sequence[int], public: bool) -> dict[int, Hit]:
        """Hits without scores by page id."""
        types, hits = self._columns(connection), {}
        query = f"SELECT page_id, page, {VERSION_COLUMNS} FROM live_pages WHERE page_id = ANY(%s)"
        for identity, page, *row in connection.execute(query, (list(identities),)) if identities else ():
            version = document_version(row)
            hits[identity] = Hit(
                version.name, page, 0.0, version.source, metadata=shown_metadata(version, types, public),
                public_name=version.public_name, page_id=public_page_id(version.document_id, page),
            )  # fmt: skip
        return hits

    def page_scores(self, query: Any, pages: Sequence[PageKey]) -> dict[PageKey, float]:
        """MaxSim scores of some pages; those that do not exist, or have no vectors, are left out."""
        with self.connections.reading() as connection:
            keys = self.page_keys(connection, pages)
            coding = self.read_info(connection)[1].coding
            (ranking,) = self._scan(connection, coding, np.array(sorted(keys), np.int64), [query], len(keys))
            return {keys[identity]: score for identity, score in ranking}

    @staticmethod
    def page_keys(connection: Connection, pages: Sequence[PageKey]) -> dict[int, PageKey]:
        """Return the keys of live pages by id."""
        if not pages:
            return {}
        rows = connection.execute(
            "SELECT l.page_id, l.path, l.page FROM live_pages l JOIN (SELECT unnest(%s::text[]) AS path, "
            "unnest(%s::int[]) AS page) k ON k.path = l.path AND k.page = l.page",
            ([source for source, _ in pages], [page for _, page in pages]),
        )
        return {identity: (path, page) for identity, path, page in rows}


class OutdatedError(Exception):
    """A transaction reads an earlier commit than the cached pages."""


def cache_bytes() -> int:
    """Return the most bytes of codes that a process keeps in memory."""
    value = os.environ.get(CACHE_VARIABLE, str(CACHE_MB))
    if not value.isdecimal():
        raise InvalidArgumentError(f"{CACHE_VARIABLE} must be a number of megabytes, got {value!r}.")
    return int(value) << 20
