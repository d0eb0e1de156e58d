"""Reading an index: what it is, searching, pages as they are stored.

What a search does not need (torch, models, documents) is imported where it is needed: a search with nano starts in a
moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from anchorfold.errors import AnchorFoldError
from anchorfold.index.embedded import EmbeddedStore
from anchorfold.index.hits import Hit, Mode, Selection, require_mode
from anchorfold.index.hybrid import hybrid_hits
from anchorfold.index.model import IndexModel
from anchorfold.index.scan import Scanner
from anchorfold.index.selection import matching
from anchorfold.index.store.facets import Facet
from anchorfold.index.store.records import PageText, Version
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.store.snapshot import StoredPage

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image
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

    def __init__(self, store: EmbeddedStore, model: IndexModel) -> None:
        self._store, self._given_model = store, model

    def __repr__(self) -> str:
        s = self.settings
        options = ", ".join(f"{name}={value}" for name, value in s.options.items())
        return f"{type(self).__name__}({str(self.path)!r}, {len(self)} documents, {s.model}, {s.method}({options}))"

    def __len__(self) -> int:
        """The number of documents."""
        return len(self._store.names())

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the documents."""
        return iter(sorted(self._store.names().values()))

    # What it is.

    @property
    def path(self) -> Path:
        """Its folder."""
        return self._store.folder

    @property
    def settings(self) -> IndexSettings:
        """What it was made with."""
        return self._store.settings

    @property
    def version(self) -> Version:
        """The newest commit; differs whenever anything changed."""
        return self._store.version

    @property
    def _model(self) -> IndexModel:
        """The model of the settings: another one if the index was re-created with other settings."""
        if self._given_model.settings is not self._store.settings:
            self._given_model = self._given_model.for_settings(self._store.settings)
        return self._given_model

    @property
    def model(self) -> PageEncoder:
        """The encoder that it was made with, loaded when it is first asked for."""
        return self._model.encoder

    @property
    def compressor(self) -> Compressor:
        """The compressor that it was made with, bound to the layers of that time."""
        return self._model.compressor()

    # Searching.

    @overload  # a text is a sequence of texts too, so the checker sees an overlap where none is meant
    def search(  # type: ignore[overload-overlap]
        self, query: str, top: int = 10, *, mode: Mode | None = None, documents: str | Sequence[str] | None = None,
        where: str | None = None, exact: bool | None = None, candidates: int | None = None,
    ) -> list[Hit]: ...  # fmt: skip

    @overload
    def search(
        self, query: Sequence[str], top: int = 10, *, mode: Mode | None = None,
        documents: str | Sequence[str] | None = None, where: str | None = None, exact: bool | None = None,
        candidates: int | None = None,
    ) -> list[list[Hit]]: ...  # fmt: skip

    def search(
        self,
        query: str | Sequence[str],
        top: int = 10,
        *,
        mode: Mode | None = None,
        documents: str | Sequence[str] | None = None,
        where: str | None = None,
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
        self._store.refresh()
        self.check_where(where)
        mode = mode or self.modes[0]
        require_mode(mode)
        selection = Selection(documents, where)
        answers = self._search(texts, top, mode, selection, exact, candidates)
        hits = [[replace(hit, render=self._render) for hit in answer] for answer in answers]
        return hits[0] if isinstance(query, str) else hits

    def _render(self, hit: Hit, pixels: int) -> Image:
        from anchorfold.documents.originals import find_image

        image, _ = find_image(self.details_at(hit.source, hit.page), pixels * pixels)
        image.thumbnail((pixels, pixels))
        return image

    def _search(
        self, texts: Sequence[str], top: int, mode: Mode, selection: Selection, exact: bool | None = None,
        candidates: int | None = None,
    ) -> list[list[Hit]]:  # fmt: skip
        if mode == "text":
            return [self._store.search_text(text, top, selection) for text in texts]
        if mode == "hybrid":
            self._store.require_text()  # before a model is loaded
        vectors = self.encode_queries(texts)
        if mode == "hybrid":
            return hybrid_hits(self._store, texts, vectors, top, selection, exact=exact, candidates=candidates)
        return self._store.search(vectors, top, selection, exact, candidates)

    def scanner(self) -> Scanner:
        """The scanner of the newest commit, for measurements."""
        return self._store.pages.with_scanner(lambda _, scanner: scanner)

    def warm_up(self) -> None:
        """Open the vector files, so that the first search need not."""
        self._store.pages.with_scanner(lambda *_: None)

    def has_public_document(self, document: str) -> bool:
        """Whether a public name or pattern matches any document."""
        return bool(document.strip()) and self._store.has_public_document(document)

    def find_public_page(self, identity: str) -> tuple[str, str, int] | None:
        """Path, public name and number of a page by `Hit.page_id`; None if there is none."""
        return self._store.find_page(identity)

    def public_page_id(self, document: str, page: int) -> str | None:
        """The `Hit.page_id` of a page by the public name of its document; None if there is none."""
        return self._store.public_page_id(document, page)

    def public_documents(self) -> dict[str, tuple[str, int]]:
        """Path and number of pages of all documents by public name."""
        return self._store.public_documents()

    def search_public(
        self, query: str, top: int = 10, mode: Mode | None = None, document: str | None = None, where: str | None = None
    ) -> list[Hit]:
        """As `search` for clients of a server: documents are selected and filtered by their public names."""
        self._store.refresh()
        return self._search([query], top, mode or self.modes[0], Selection(document, where, public=True))[0]

    def no_result_reason(self, query: str, mode: Mode | None = None, where: str | None = None) -> str:
        """Why a search returned nothing."""
        mode = mode or self.modes[0]
        if not self._store.names():
            return "the index is empty"
        if mode == "text":
            return self._store.no_match_reason(query, where)
        if where is not None and not self._store.search_anything(Selection(where=where)):
            return "the filter matches no page"
        if not len(self.encode_queries([query])[0]):
            return f"the model {self.settings.model} finds no word that it can read in the query"
        return "no page matches"

    def encode_queries(self, texts: Sequence[str]) -> Sequence[Tensor | np.ndarray]:
        """`(tokens, d)` vectors of queries, by the light query side of the model where it has one."""
        return self._model.encode_queries(texts)

    def search_vectors(
        self,
        queries: Sequence[Tensor | np.ndarray],
        top: int = 10,
        *,
        documents: str | Sequence[str] | None = None,
        where: str | None = None,
        exact: bool | None = None,
        candidates: int | None = None,
    ) -> list[list[Hit]]:
        """As `search`, for queries that are encoded already, `(tokens, d)` each."""
        self._store.refresh()
        return self._store.search(queries, top, Selection(documents, where), exact, candidates)

    def check_where(self, where: str | None) -> None:
        """Raise FilterError for a wrong filter, before anything is loaded."""
        if where is not None:
            self._store.check_where(where)

    def columns(self) -> dict[str, str]:
        """The columns that a filter may use, and their types: text, integer, float, boolean or date."""
        return self._store.columns()

    def facets(self, public: bool = False) -> list[Facet]:
        """Columns with few values, and how many documents have each; with `public`, under public names."""
        return self._store.facets(public)

    @property
    def searched(self) -> float:
        """The share of all pages that the last search of this thread scanned: 1, unless shards timed out."""
        return self._store.pages.searched

    # Pages.

    def page(self, document: str, page: int) -> tuple[EncodedPage, dict[str, Any]]:
        """One page as it is stored, and what else is known of it (source, document, thumbnail, ...)."""
        for source in matching(document, self._store.names()):
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
        """The text of a page, by the absolute path of its document; None if it is not stored."""
        return self._store.page_text(source, page)

    def snippet(self, query: str, source: str, page: int) -> str:
        """A passage of a page that matches a query, or its whole text in one line; empty without text."""
        passages = self._store.snippets(query, [(source, page)]) if self.has_text else {}
        if passages:
            return passages[source, page].text
        stored = self.text_at(source, page)
        return "" if stored is None else " ".join(stored.text.split())

    def matched_words(self, query: str, source: str, page: int) -> list[str]:
        """The words of a page that match a query, as they occur on the page; none if the index stores no text."""
        return self._store.matched_words(query, source, page)

    @property
    def has_text(self) -> bool:
        """Whether it can be searched by text."""
        return self.settings.text

    @property
    def modes(self) -> list[Mode]:
        """The ways in which it can be searched, the one that is taken if none is named first."""
        return ["visual", "hybrid", "text"] if self.has_text else ["visual"]

    def _read_page(self, source: str, page: int, read: Callable[[StoredPage], T]) -> T:
        result = self._store.read_page(source, page, lambda stored: (read(stored),))
        if result is None:
            raise NoSuchPageError(f"{self.path} contains no page {page} of {os.path.basename(source)!r}.")
        return result[0]

    def info(self) -> IndexInfo:
        """Counts, sizes and settings."""
        return self._store.info()

    def export(self, to: str, target: str | Path, **options: Any) -> int:
        """Write all pages elsewhere: `to` is qdrant, parquet, npz or another target that a package offers.

        Returns the number of pages written.
        """
        from anchorfold.index.export import EXPORTERS

        return self._store.export_pages(lambda snapshot: EXPORTERS[to].write(snapshot, target, **options))
