"""Reading an index: what it is, searching, pages as they are stored.

What a search does not need (torch, models, documents) is imported where it is needed: a search with nano starts in a
moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from anchorfold.errors import AnchorFoldError
from anchorfold.index.filters.columns import Facet, Where
from anchorfold.index.hybrid import Mode, TextSearch, require_mode
from anchorfold.index.live import LivePages
from anchorfold.index.model import IndexModel
from anchorfold.index.scan import Scanner
from anchorfold.index.searching import Hit, PageSearch
from anchorfold.index.selection import matching
from anchorfold.index.store.pages import StoredPage
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.store.snapshot import Snapshot
from anchorfold.index.store.table import PageTable
from anchorfold.index.store.texts import PageText, row_number
from anchorfold.index.words import expression_of

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from anchorfold.backbones.encoder import PageEncoder
    from anchorfold.compressors import Compressor
    from anchorfold.index.store.info import IndexInfo
    from anchorfold.page import EncodedPage
T = TypeVar("T")


class NoSuchPageError(AnchorFoldError):
    """The index holds no such page."""


class IndexReader:
    """What `Index` can do without changing anything."""

    def __init__(self, table: PageTable, model: IndexModel) -> None:
        self._table, self._model = table, model
        self._search = PageSearch(table)
        self._texts = TextSearch(self._search)

    @property
    def _text_search(self) -> TextSearch:
        if self._texts.search is not self._search:  # shards took its place
            self._texts = TextSearch(self._search)
        return self._texts

    # What it is.

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._table.folder

    @property
    def settings(self) -> IndexSettings:
        """What it was made with."""
        return self._table.settings

    @property
    def version(self) -> int:
        """Moves with every change."""
        return self._table.version

    @property
    def model(self) -> PageEncoder:
        """The encoder that it was made with, loaded when it is first asked for."""
        return self._model.encoder

    @cached_property
    def compressor(self) -> Compressor:
        """The compressor that it was made with, bound to the layers of that time."""
        return self._model.compressor()

    # Searching.

    @overload  # a text is a sequence of texts too, so the checker sees an overlap where none is meant
    def search(  # type: ignore[overload-overlap]
        self, query: str, top: int = 10, *, mode: Mode | None = None, documents: str | Sequence[str] | None = None,
        where: str | Where | None = None, exact: bool | None = None, candidates: int | None = None,
    ) -> list[Hit]: ...  # fmt: skip

    @overload
    def search(
        self, query: Sequence[str], top: int = 10, *, mode: Mode | None = None,
        documents: str | Sequence[str] | None = None, where: str | Where | None = None, exact: bool | None = None,
        candidates: int | None = None,
    ) -> list[list[Hit]]: ...  # fmt: skip

    def search(
        self,
        query: str | Sequence[str],
        top: int = 10,
        *,
        mode: Mode | None = None,
        documents: str | Sequence[str] | None = None,
        where: str | Where | None = None,
        exact: bool | None = None,
        candidates: int | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """The best pages: a list of hits for one query, a list of such lists for several.

        Args:
            query: a text or several.
            top: pages a query.
            mode: by what pages look like ("visual", also if None), by what they say ("text"), or by both ("hybrid").
            documents: only pages of these: names, paths, folders or patterns such as `*.pdf`.
            where: only pages for which this is true, an SQL condition on their columns such as
                `year >= 2024 and department = 'sales'` (`docs/guides/filters.md`).
            exact: True scores every page; else large indexes choose candidates first (`docs/scale.md`). The score of
                a page is the same either way.
            candidates: how many pages to score then, 4,000 if None: `anchorfold bench agreement` tells what is enough.
        """
        texts = [query] if isinstance(query, str) else list(query)
        if top < 1:
            raise AnchorFoldError(f"top must be at least 1, got {top}.")
        self.check_where(where)
        mode = mode or self.modes[0]
        require_mode(mode)
        filters: dict[str, Any] = {"documents": documents, "where": where}
        options: dict[str, Any] = {"exact": exact, "candidates": candidates}
        if mode == "text":
            hits = self._text_search.text_hits(texts, top, filters)
        elif mode == "hybrid":
            self._text_search.require_text()  # before a model is loaded
            hits = self._text_search.hybrid_hits(texts, self.encode_queries(texts), top, filters, **options)
        else:
            hits = self._search.hits(self.encode_queries(texts), top, **filters, **options)
        return hits[0] if isinstance(query, str) else hits

    def encode_queries(self, texts: Sequence[str]) -> Sequence[Tensor | np.ndarray]:
        """`(tokens, d)` vectors of queries, by the light query side of the model where it has one."""
        return self._model.encode_queries(texts)

    def search_vectors(
        self,
        queries: Sequence[Tensor | np.ndarray],
        top: int = 10,
        *,
        documents: str | Sequence[str] | None = None,
        where: str | Where | None = None,
        exact: bool | None = None,
        candidates: int | None = None,
    ) -> list[list[Hit]]:
        """As `search`, for queries that are encoded already, `(tokens, d)` each."""
        return self._search.hits(queries, top, documents, exact, candidates, where)

    def check_where(self, where: str | Where | None) -> None:
        """Refuse a filter that is wrong, before anything is loaded for it."""
        text = where.text if isinstance(where, Where) else where
        if text is not None:
            self._search.columns(self.live(), where).check(text)

    def columns(self) -> dict[str, str]:
        """The columns that a filter may use, and their types: text, integer, float, boolean or date."""
        return dict(self._search.columns(self.live()).types)

    def facets(self, names: Mapping[str, str] | None = None) -> list[Facet]:
        """Columns with few values, and how many documents have each.

        Args:
            names: what documents are called, by source, if not as in the index.
        """
        return self._search.columns(self.live(), None if names is None else Where(None, names)).facets

    def scanner(self) -> Scanner:
        """What scores queries against the newest version."""
        return self._search.scanner()

    @property
    def searched(self) -> float:
        """The share of all pages that the last search of this thread looked through: 1, unless shards were silent."""
        return self._search.searched

    def live(self) -> LivePages:
        """All live pages of the newest version."""
        return self.scanner().live

    # Pages.

    def page(self, document: str, page: int) -> tuple[EncodedPage, dict[str, Any]]:
        """One page as it is stored, and what else is known of it (source, document, thumbnail, ...)."""
        self._table.refresh()
        live = {version.source: version.name for version in self._table.state.documents.values() if version.live}
        for source in matching(document, live):
            with suppress(NoSuchPageError):
                return self.page_at(source, page)
        raise NoSuchPageError(f"{self.path} holds no page {page} of {document!r}.")

    def page_at(self, source: str, page: int) -> tuple[EncodedPage, dict[str, Any]]:
        """As `page`, by the absolute path of the document."""
        return self._read_page(source, page, lambda stored: (stored.encoded(), stored.details()))

    def details_at(self, source: str, page: int) -> dict[str, Any]:
        """What is known of a page, without reading its vectors."""
        return self._read_page(source, page, StoredPage.details)

    def text_at(self, source: str, page: int) -> PageText | None:
        """What a page says, by the absolute path of its document; None if the index does not know it."""
        row = self._text_row(source, page)
        return None if row is None else self._table.texts.text(row)

    def matched_words(self, query: str, source: str, page: int) -> list[str]:
        """The words of a page that match a query, as they stand there; none if the index keeps no text."""
        row, expression = self._text_row(source, page), expression_of(query)
        return self._table.texts.matched_words(expression, row) if row is not None and expression else []

    def _text_row(self, source: str, page: int) -> int | None:
        """Where the text of a live page stands; None if there is no such document, or no text."""
        self._table.refresh()
        versions = self._table.state.versions(source).items() if self.has_text else ()
        return next((row_number(number, page) for number, version in versions if version.live), None)

    @property
    def has_text(self) -> bool:
        """Whether it can be searched by text."""
        return self.settings.text and bool(self._table.texts)

    @property
    def modes(self) -> list[Mode]:
        """The ways in which it can be searched, the one that is taken if none is named first."""
        return ["visual", "hybrid", "text"] if self.has_text else ["visual"]

    def _read_page(self, source: str, page: int, read: Callable[[StoredPage], T]) -> T:
        def from_snapshot(snapshot: Snapshot) -> T:
            stored = snapshot.page(source, page)
            if stored is None:
                raise NoSuchPageError(f"{self.path} holds no page {page} of {os.path.basename(source)!r}.")
            return read(stored)

        return self._table.snapshot(from_snapshot)

    def info(self) -> IndexInfo:
        """Counts, sizes and settings."""
        from anchorfold.index.store.info import index_info

        return self._table.snapshot(index_info)

    def export(self, to: str, target: str | Path, **options: Any) -> int:
        """Write all pages elsewhere: `to` is qdrant, parquet, npz or another target that a package offers.

        Returns the number of pages written.
        """
        from anchorfold.index.export import EXPORTERS

        return self._table.snapshot(lambda snapshot: EXPORTERS[to].write(snapshot, target, **options))
