"""Search in PostgreSQL: candidates by one vector per page, exact MaxSim on fetched codes, and full-text search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import log
from typing import Any

import numpy as np
from psycopg import errors

from anchorfold.databases.passages import Passages, folded_words
from anchorfold.databases.postgres_connection import Connection
from anchorfold.databases.postgres_documents import PostgresDocuments, halfvec, page_checksum
from anchorfold.databases.postgres_filter import FILTER_SECONDS, Condition, compile_filter
from anchorfold.databases.postgres_page import VERSION_COLUMNS, document_version, page_damaged
from anchorfold.errors import AnchorFoldError, FilterError
from anchorfold.filters.values import BUILT_IN
from anchorfold.retrieval.candidate_vectors import candidate_query
from anchorfold.retrieval.derived import require_text
from anchorfold.retrieval.page_block import PageBlock, merge_rankings
from anchorfold.storage.hits import Hit, PageKey, SearchRequest, as_names, selector
from anchorfold.storage.info import shown_metadata
from anchorfold.storage.records import Snippet
from anchorfold.storage.schema import public_page_id
from anchorfold.storage.text_search import MOST_TERMS, query_terms

SCANNED_PAGES = 20_000  # up to here all pages are scored, because candidates lose pages (docs/guides/postgresql.md)
CANDIDATES = 4_000  # pages of a larger index that are scored, at least
FETCHED_PAGES = 1_000  # pages per request of a scan
RANKED_MATCHES = 2_000  # pages that match a text query and are scored by BM25, the best by ts_rank
K1, B = 1.2, 0.75  # of BM25, as in SQLite
CODES = "page_id, codes, scales, provenance, checksum, document, page"
Ranking = list[tuple[int, float]]


class PostgresSearch(PostgresDocuments):
    """Search of an index in a schema; each call reads one commit."""

    searched = 1.0  # a server that does not answer is an error

    def warm_up(self) -> None:
        """Open a connection."""
        self.refresh()

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
    def _selecting(self, request: SearchRequest) -> Iterator[tuple[Connection, Condition]]:
        """A transaction, and the filters of a request as a condition on `live_pages`."""
        with self.connections.reading() as connection:
            connection.execute(f"SET LOCAL statement_timeout = '{FILTER_SECONDS}s'" if request.where else "SELECT 1")
            parts, parameters = ["true"], []
            if request.documents is not None:
                parts.append("version_id = ANY(%s)")
                parameters.append(self._selected_versions(connection, request))
            if request.where is not None:
                from anchorfold.filters.where import parse_where  # imports sqlglot

                types = self._columns(connection)
                text, values = compile_filter(parse_where(request.where, types), types, request.public)
                parts.append(f"({text})")
                parameters += values
            try:
                yield connection, (" AND ".join(parts), parameters)
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

    # Visual search.

    def search_visual(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the best pages by MaxSim for each of `request.vectors`."""
        with self._selecting(request) as (connection, condition):
            total = self._count(connection)
            is_small = request.candidates is None and total <= SCANNED_PAGES
            candidates = request.candidates or max(CANDIDATES, 4 * request.top_k)
            if request.exact or is_small or candidates >= total:
                rankings = self._scan(connection, condition, request)
            else:
                rankings = [
                    self._best_candidates(connection, condition, query, request.top_k, candidates)
                    for query in request.vectors
                ]
            return self._visual_hits(connection, rankings, request.public)

    @staticmethod
    def _count(connection: Connection) -> int:
        """Return the number of pages; an estimate if there are many."""
        row = connection.execute(
            "SELECT CASE WHEN reltuples > 20000 THEN reltuples::bigint ELSE (SELECT count(*) FROM pages) END "
            "FROM pg_class WHERE oid = 'pages'::regclass"
        ).fetchone()
        return int(row[0]) if row else 0

    def _scan(self, connection: Connection, condition: Condition, request: SearchRequest) -> list[Ranking]:
        """Score all pages, in blocks."""
        best: list[Ranking] = [[] for _ in request.vectors]
        text, parameters = condition
        query = f"SELECT {CODES} FROM live_pages WHERE vectors > 0 AND {text}"
        with connection.cursor("scan", binary=True) as cursor:
            cursor.itersize = FETCHED_PAGES
            cursor.execute(query, parameters)
            while rows := cursor.fetchmany(FETCHED_PAGES):
                rankings = self._block(rows).top_k(request.vectors, request.top_k)
                best = [merge_rankings(both, request.top_k) for both in zip(best, rankings, strict=True)]
        return best

    def _best_candidates(
        self, connection: Connection, condition: Condition, query: Any, top_k: int, candidates: int
    ) -> Ranking:
        tokens = np.asarray(query, np.float32).reshape(-1, self.settings.dim)
        if not len(tokens):
            return []
        text, parameters = condition
        connection.execute(f"SET LOCAL hnsw.ef_search = {min(candidates, 1000)}")
        connection.execute("SET LOCAL hnsw.iterative_scan = relaxed_order")
        connection.execute(f"SET LOCAL hnsw.max_scan_tuples = {max(20_000, 4 * candidates)}")
        rows = connection.execute(
            f"SELECT {CODES} FROM live_pages WHERE vectors > 0 AND {text} ORDER BY candidate <#> %s::halfvec LIMIT %s",
            (*parameters, halfvec(candidate_query(tokens)), candidates),
            binary=True,
        ).fetchall()
        if len(rows) < top_k:  # the filter allows few pages, which the index may have missed
            request = SearchRequest(vectors=[tokens], top_k=top_k)
            return self._scan(connection, condition, request)[0]
        return self._block(rows).top_k([tokens], top_k)[0]

    def _block(self, rows: Sequence[tuple[Any, ...]]) -> PageBlock:
        """Return rows of `CODES`, verified."""
        for _, codes, scales, provenance, checksum, document, page in rows:
            if page_checksum(codes, scales, provenance) != checksum:
                raise page_damaged(self.location, document, page)
        identities = np.fromiter((row[0] for row in rows), np.int64, len(rows))
        return PageBlock(self.settings.coding, identities, [row[1] for row in rows], [row[2] for row in rows])

    def _visual_hits(self, connection: Connection, rankings: Sequence[Ranking], public: bool) -> list[list[Hit]]:
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
            keys = self._page_ids(connection, pages)
            rows = connection.execute(
                f"SELECT {CODES} FROM live_pages WHERE page_id = ANY(%s) AND vectors > 0", (list(keys),), binary=True
            ).fetchall()
            (ranking,) = self._block(rows).top_k([query], len(rows))
            return {keys[identity]: score for identity, score in ranking}

    @staticmethod
    def _page_ids(connection: Connection, pages: Sequence[PageKey]) -> dict[int, PageKey]:
        """Return the keys of live pages by id."""
        if not pages:
            return {}
        rows = connection.execute(
            "SELECT l.page_id, l.path, l.page FROM live_pages l JOIN (SELECT unnest(%s::text[]) AS path, "
            "unnest(%s::int[]) AS page) k ON k.path = l.path AND k.page = l.page",
            ([source for source, _ in pages], [page for _, page in pages]),
        )
        return {identity: (path, page) for identity, path, page in rows}

    # Text search.

    def search_text(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the best pages by BM25 for each of `request.texts`."""
        require_text(self)
        results = []
        with self._selecting(request) as (connection, condition):
            for text in request.texts:
                scores = self._text_ranking(connection, text, condition)
                best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[: request.top_k]
                hits = self._hits(connection, [identity for identity, _ in best], request.public)
                passages = self._passages(connection, text, list(hits))
                results.append([
                    replace(hits[i], score=score, text=score, snippet=passages[i].text, matches=passages[i].matches)
                    for i, score in best if i in passages
                ])  # fmt: skip
        return results

    def _text_ranking(self, connection: Connection, query: str, condition: Condition) -> dict[int, float]:
        """Return BM25 scores of the best matching pages by id."""
        if (parsed := tsquery(query)) is None:
            return {}
        expression, words = parsed
        weights = self._word_weights(connection, words)
        text, parameters = condition
        rows = connection.execute(
            "SELECT m.page_id, m.word_count, w.lexeme, cardinality(w.positions) FROM (SELECT page_id, words, "
            f"word_count FROM live_pages WHERE words @@ %s::tsquery AND {text} "
            "ORDER BY ts_rank(words, %s::tsquery) DESC, page_id LIMIT %s) m, unnest(m.words) w "
            "WHERE w.lexeme = ANY(%s)",
            (expression, *parameters, expression, RANKED_MATCHES, words),
        )
        average, scores = weights.pop("", 1.0), dict[int, float]()
        for identity, length, word, count in rows:
            norm = K1 * (1 - B + B * length / average)
            scores[identity] = scores.get(identity, 0.0) + weights[word] * count * (K1 + 1) / (count + norm)
        return scores

    @staticmethod
    def _word_weights(connection: Connection, words: Sequence[str]) -> dict[str, float]:
        """Return the inverse document frequency of each word; under "" the average number of words per page."""
        row = connection.execute("SELECT count(words), coalesce(avg(word_count), 1) FROM live_pages").fetchone()
        pages, average = (row[0], float(row[1])) if row else (0, 1.0)
        weights = {"": max(average, 1.0)}
        for word in words:
            result = connection.execute("SELECT count(*) FROM live_pages WHERE words @@ %s::tsquery", (f"'{word}'",))
            count = (result.fetchone() or (0,))[0]
            weights[word] = max(log((pages - count + 0.5) / (count + 0.5)), 1e-6)  # as in SQLite
        return weights

    def _passages(self, connection: Connection, query: str, identities: Sequence[int]) -> dict[int, Snippet]:
        if not identities:
            return {}
        rows = connection.execute("SELECT id, text FROM pages WHERE id = ANY(%s) AND text != ''", (list(identities),))
        texts = {str(identity): text for identity, text in rows}
        return {int(identity): snippet for identity, snippet in Passages(query).snippets(texts).items()}

    def text_scores(self, query: str, pages: Sequence[PageKey]) -> dict[PageKey, float | None]:
        """Return BM25 scores of some pages: 0 without a match, None without text."""
        with self.connections.reading() as connection:
            keys = self._page_ids(connection, pages)
            scores = self._text_ranking(connection, query, ("page_id = ANY(%s)", [list(keys)])) if keys else {}
            rows = connection.execute("SELECT id FROM pages WHERE id = ANY(%s) AND text != ''", (list(keys),))
            readable = {identity for (identity,) in rows}
        return {key: scores.get(i, 0.0) if i in readable else None for i, key in keys.items()}

    def snippets(self, query: str, pages: Sequence[PageKey]) -> dict[PageKey, Snippet]:
        """Return passages of some pages that match a query."""
        with self.connections.reading() as connection:
            keys = self._page_ids(connection, pages)
            return {keys[i]: snippet for i, snippet in self._passages(connection, query, list(keys)).items()}

    def matched_words(self, query: str, source: str, page: int) -> list[str]:
        """Return the words of a page that match a query, as they occur on the page."""
        rows = self.rows("SELECT text FROM live_pages WHERE path = %s AND page = %s AND text != ''", (source, page))
        return [word for (text,) in rows for word in Passages(query).words(text)]


def tsquery(query: str) -> tuple[str, list[str]] | None:
    """Return a query as text of the type `tsquery`, and its words; None if it has none.

    Examples:
        >>> tsquery('staff "net revenue"')
        ("('net' <-> 'revenue') & ('net' <-> 'revenue' | 'staff')", ['net', 'revenue', 'staff'])
    """
    phrases, terms = ([folded_words(term) for term in group][:MOST_TERMS] for group in query_terms(query))
    phrases, terms = [words for words in phrases if words], [words for words in terms if words]
    mandatory = " & ".join(f"({_phrase(words)})" for words in phrases)
    anywhere = " | ".join(map(_phrase, [*phrases, *terms]))
    words = list(dict.fromkeys(word for group in (*phrases, *terms) for word in group))
    if not words:
        return None
    return (f"{mandatory} & ({anywhere})" if phrases and terms else mandatory or anywhere), words


def _phrase(words: Sequence[str]) -> str:
    return " <-> ".join(f"'{word}'" for word in words)
