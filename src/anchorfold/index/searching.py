"""Searching an index: the newest version kept open between queries, filters, and hits."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.index.candidate_files import open_candidates
from anchorfold.index.live import LivePages
from anchorfold.index.scan import Scanner
from anchorfold.index.selection import as_names, selector
from anchorfold.index.store.snapshot import Snapshot
from anchorfold.index.store.table import PageTable


@dataclass(frozen=True)
class Hit:
    """A page that answers a query. `document` is its path as given when it was indexed, `page` counts from 1.

    `visual` and `text` are the scores of what it looks like (MaxSim) and of what it says (BM25), None for a side that
    was not asked; `snippet` is a piece of its text, `matches` the places (first, last exclusive) of the query's words.

    >>> hit = index.search("net revenue by region")[0]
    >>> hit.document, hit.page
    ('reports/annual.pdf', 2)
    """

    document: str
    page: int
    score: float
    source: str
    visual: float | None = None
    text: float | None = None
    snippet: str = ""
    matches: tuple[tuple[int, int], ...] = ()


class PageSearch:
    """Searches the newest version of a table. Safe for threads."""

    searched = 1.0  # the share of all pages that a search looks through

    def __init__(self, table: PageTable) -> None:
        self.table = table
        self._scanner: Scanner | None = None
        self._opening = threading.Lock()

    def scanner(self) -> Scanner:
        """Of the newest version; segments that are open already stay so."""
        with self._opening:
            if self._scanner is None or self._scanner.live.version != self.table.refresh():
                self._scanner = self.table.snapshot(_scanner_of)
            return self._scanner

    def allowed(self, live: LivePages, documents: str | Sequence[str] | None = None) -> np.ndarray | None:
        """`(rows,)` true for live pages that pass the filters of `Index.search`; None if there are no filters."""
        if documents is None:
            return None
        allowed = live.of_documents(selector(documents, live.documents.values()))
        if not allowed.any():
            names = ", ".join(as_names(documents))
            raise AnchorFoldError(f"{self.table.folder} holds no document that matches {names}.")
        return allowed

    def hits(
        self, queries: Sequence[Any], top: int, documents: str | Sequence[str] | None = None,
        exact: bool | None = None, candidates: int | None = None,
    ) -> list[list[Hit]]:  # fmt: skip
        """The best pages for each query, `(tokens, d)` arrays or tensors; the options are those of `Index.search`."""
        scanner = self.scanner()
        live = scanner.live
        allowed = self.allowed(live, documents)
        answers = []
        for ranking in scanner.top(queries, top, allowed, exact, candidates):
            pages = [(*live.page(number), score) for number, score in ranking]
            answers.append([Hit(version.name, page, score, version.source, score) for version, page, score in pages])
        return answers


def _scanner_of(snapshot: Snapshot) -> Scanner:
    live = LivePages(snapshot)
    return Scanner(live, open_candidates(snapshot, live))
