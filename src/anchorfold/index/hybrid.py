"""Searching by what pages say, alone or together with what they look like."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.index.fusion import POOL, fused
from anchorfold.index.live import LivePages
from anchorfold.index.searching import Hit, PageSearch
from anchorfold.index.store.texts import PageTexts, row_number, row_numbers
from anchorfold.index.words import expression_of

Mode = Literal["visual", "text", "hybrid"]
MODES: tuple[str, ...] = get_args(Mode)


def require_mode(mode: str) -> None:
    """Refuse a mode that there is not."""
    if mode not in MODES:
        raise AnchorFoldError(f"there is no mode {mode!r} of searching: choose one of {', '.join(MODES)}.")


class TextSearch:
    """Searches the newest version of an index by its text. Safe for threads.

    Args:
        search: the same index, searched by vectors.
    """

    def __init__(self, search: PageSearch) -> None:
        self.search = search
        self.texts: PageTexts = search.table.texts
        self._rows: _TextRows | None = None
        self._lock = threading.Lock()

    def require_text(self) -> None:
        """Refuse an index that keeps no text."""
        table = self.search.table
        if not table.settings.text or not self.texts:
            raise AnchorFoldError(
                f"{table.folder} keeps no text: search it with --mode visual, or add the text with `anchorfold index "
                f"DOCUMENTS --to {table.folder} --text`, which encodes no page again."
            )

    def text_hits(self, queries: Sequence[str], top: int, filters: dict[str, Any]) -> list[list[Hit]]:
        """The pages whose text matches each query best; `filters` are those of `PageSearch.allowed`."""
        self.require_text()
        live = self.search.scanner().live
        allowed = self.search.allowed(live, **filters)
        answers = []
        for query in queries:
            numbers, scores = self._matches(query, live, allowed)
            best = np.lexsort((numbers, -scores))[:top].tolist()
            hits = [self._hit(live, numbers[i], scores[i], filters, None, scores[i]) for i in best]
            answers.append(self._with_snippets(query, live, hits, numbers[best]))
        return answers

    def hybrid_hits(
        self, queries: Sequence[str], vectors: Sequence[Any], top: int, filters: dict[str, Any], **options: Any
    ) -> list[list[Hit]]:
        """The best pages by both sides for each query.

        Each side names its best pages; the other scores these as well, exactly, and all are ordered by both scores.

        Args:
            queries: texts.
            vectors: of the same, `(tokens, d)` each.
            top: pages a query.
            filters: those of `PageSearch.allowed`.
            options: further ones of `PageSearch.hits`.
        """
        self.require_text()
        visual = self.search.hits(vectors, max(top, POOL), **filters, **options)
        scanner = self.search.scanner()
        live = scanner.live
        allowed, rows = self.search.allowed(live, **filters), self._rows_of(live)
        answers: list[list[Hit]] = []
        for query, vector, hits in zip(queries, vectors, visual, strict=True):
            numbers, scores = self._matches(query, live, allowed)
            best = np.lexsort((numbers, -scores))[: max(top, POOL)]
            looks = {n: h.score for h in hits if (n := rows.number(h.source, h.page)) is not None}
            others = np.setdiff1d(numbers[best], np.fromiter(looks, np.int64, len(looks)))
            looks |= dict(scanner.best_of_some(vector, others, len(others)))
            pool = np.array(sorted(looks), np.int64)
            if not len(pool):
                answers.append([])
                continue
            words = np.zeros(len(pool))
            order = np.argsort(numbers)
            at = np.minimum(np.searchsorted(numbers[order], pool), max(len(numbers) - 1, 0))
            if len(numbers):
                words = np.where(numbers[order][at] == pool, scores[order][at], 0.0)
            silent = ~np.isin(rows.rows[pool], self.texts.that_say_something(rows.rows[pool].tolist()))
            seen = np.array([looks[n] for n in pool.tolist()])
            both = fused(seen, words, silent)
            chosen = np.lexsort((pool, -both))[:top].tolist()
            fused_hits = [self._hit(live, pool[i], both[i], filters, seen[i], words[i]) for i in chosen]
            answers.append(self._with_snippets(query, live, fused_hits, pool[chosen]))
        return answers

    def _hit(
        self, live: LivePages, number: int, score: float, filters: dict[str, Any], visual: float | None, text: float
    ) -> Hit:
        hit = self.search.hit(live, int(number), float(score), filters.get("where"))
        return replace(hit, visual=None if visual is None else float(visual), text=float(text))

    def _matches(self, query: str, live: LivePages, allowed: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """`(matches,)` numbers of live pages that match a query and may be answered, and their scores."""
        expression = expression_of(query)
        if not expression:
            return np.zeros(0, np.int64), np.zeros(0)
        rows, scores = self.texts.scores(expression)
        numbers = self._rows_of(live).numbers(rows)
        mask = live.allowed if allowed is None else live.allowed & allowed
        known = numbers >= 0
        known[known] = mask[numbers[known]]
        return numbers[known], scores[known]

    def _with_snippets(self, query: str, live: LivePages, hits: list[Hit], numbers: np.ndarray) -> list[Hit]:
        rows = self._rows_of(live).rows[numbers].tolist()
        expression = expression_of(query)
        snippets = self.texts.snippets(expression, rows) if expression else {}
        return [
            replace(hit, snippet=snippets[row].text, matches=snippets[row].matches) if row in snippets else hit
            for hit, row in zip(hits, rows, strict=True)
        ]

    def _rows_of(self, live: LivePages) -> _TextRows:
        with self._lock:
            if self._rows is None or self._rows.version != live.version:
                self._rows = _TextRows(live)
            return self._rows


class _TextRows:
    """Where the text of each live page stands, and back: `rows (pages,)` by the numbers that a search gives pages."""

    def __init__(self, live: LivePages) -> None:
        self.version = live.version
        parts = [row_numbers(s.document, s.page) for s in live.segments]
        self.rows = np.concatenate(parts) if parts else np.zeros(0, np.int64)
        self._order = np.argsort(self.rows)
        self._sorted = self.rows[self._order]
        self._documents = {version.source: n for n, version in live.documents.items() if version.live}

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """The numbers of pages by their rows; -1 for rows of no page."""
        if not len(self._sorted):
            return np.full(len(rows), -1)
        at = np.minimum(np.searchsorted(self._sorted, rows), len(self._sorted) - 1)
        return np.where(self._sorted[at] == rows, self._order[at], -1)

    def number(self, source: str, page: int) -> int | None:
        """The number of one page."""
        if source not in self._documents:
            return None
        number = int(self.numbers(np.array([row_number(self._documents[source], page)]))[0])
        return None if number < 0 else number
