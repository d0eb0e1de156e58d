"""Full-text search in PostgreSQL, ranked by BM25."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log

from anchorfold.databases.passages import Passages, folded_words
from anchorfold.databases.postgres_connection import Connection
from anchorfold.databases.postgres_filter import Condition
from anchorfold.databases.postgres_visual import PostgresVisual
from anchorfold.retrieval.derived import require_text
from anchorfold.storage.hits import Hit, PageKey, SearchRequest
from anchorfold.storage.records import Snippet
from anchorfold.storage.text_search import MOST_TERMS, query_terms

RANKED_MATCHES = 2_000  # pages that match a text query and are scored by BM25, the best by ts_rank
K1, B = 1.2, 0.75  # of BM25, as in SQLite
EVERY_PAGE: Condition = ("true", [])


class PostgresSearch(PostgresVisual):
    """Search of an index in a schema; each call reads one commit."""

    def search_text(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the best pages by BM25 for each of `request.texts`."""
        require_text(self)
        results = []
        with self.selecting(request) as (connection, condition):
            for text in request.texts:
                scores = self._text_ranking(connection, text, condition or EVERY_PAGE)
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
            keys = self.page_keys(connection, pages)
            scores = self._text_ranking(connection, query, ("page_id = ANY(%s)", [list(keys)])) if keys else {}
            rows = connection.execute("SELECT id FROM pages WHERE id = ANY(%s) AND text != ''", (list(keys),))
            readable = {identity for (identity,) in rows}
        return {key: scores.get(i, 0.0) if i in readable else None for i, key in keys.items()}

    def snippets(self, query: str, pages: Sequence[PageKey]) -> dict[PageKey, Snippet]:
        """Return passages of some pages that match a query."""
        with self.connections.reading() as connection:
            keys = self.page_keys(connection, pages)
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
