"""Searching an index: the newest version kept open between queries, filters, and hits."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.index.candidate_files import open_candidates
from anchorfold.index.filters.columns import Columns, Where
from anchorfold.index.filters.values import Value
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
    `metadata` is what else is known of the document, by column.

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
    metadata: Mapping[str, Value] = field(default_factory=dict, compare=False)


class PageSearch:
    """Searches the newest version of a table. Safe for threads."""

    searched = 1.0  # the share of all pages that a search looks through

    def __init__(self, table: PageTable) -> None:
        self.table = table
        self._scanner: Scanner | None = None
        self._opening = threading.Lock()
        self._columns: list[Columns] = []  # of the newest version: as documents are called, and as a server calls them

    def scanner(self) -> Scanner:
        """Of the newest version; segments that are open already stay so."""
        with self._opening:
            if self._scanner is None or self._scanner.live.version != self.table.refresh():
                self._scanner = self.table.snapshot(_scanner_of)
            return self._scanner

    def hits(
        self, queries: Sequence[Any], top: int, documents: str | Sequence[str] | None = None,
        exact: bool | None = None, candidates: int | None = None, where: str | Where | None = None,
    ) -> list[list[Hit]]:  # fmt: skip
        """The best pages for each query, `(tokens, d)` arrays or tensors; the options are those of `Index.search`."""
        scanner = self.scanner()
        live = scanner.live
        allowed = self.allowed(live, documents, where)
        return [
            [self.hit(live, number, score, where) for number, score in ranking]
            for ranking in scanner.top(queries, top, allowed, exact, candidates)
        ]

    def allowed(
        self, live: LivePages, documents: str | Sequence[str] | None = None, where: str | Where | None = None
    ) -> np.ndarray | None:
        """`(rows,)` true for pages that may be answered; None if nothing is said of them.

        Raises:
            AnchorFoldError: no document has such a name.
            FilterError: the filter is wrong.
        """
        allowed = None
        if documents is not None:
            allowed = live.of_documents(selector(documents, live.documents.values()))
            if not allowed.any():
                names = ", ".join(as_names(documents))
                raise AnchorFoldError(f"{self.table.folder} holds no document that matches {names}.")
        text = where.text if isinstance(where, Where) else where
        if text is not None:
            mask = self.columns(live, where).mask(text)
            allowed = mask if allowed is None else allowed & mask
        return allowed

    def hit(self, live: LivePages, number: int, score: float, where: str | Where | None = None) -> Hit:
        """A page by its number, as an answer."""
        segment, row = live.locate(number)
        owner = int(segment.document[row])
        version, metadata = live.documents[owner], self.columns(live, where).metadata(owner)
        return Hit(version.name, int(segment.page[row]), score, version.source, score, metadata=metadata)

    def columns(self, live: LivePages, where: str | Where | None = None) -> Columns:
        """What is known of the documents of a version, under the names that a filter knows them by."""
        names = where.names if isinstance(where, Where) else None
        with self._opening:
            for known in self._columns:
                if known.live is live and known.names is names:
                    return known
            self._columns = [*(known for known in self._columns if known.live is live), Columns(live, names)][-2:]
            return self._columns[-1]


def _scanner_of(snapshot: Snapshot) -> Scanner:
    live = LivePages(snapshot)
    return Scanner(live, open_candidates(snapshot, live))
