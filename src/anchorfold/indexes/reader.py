"""The read-only part of an index: settings, search and stored pages.

Modules that a search does not need (torch, models, documents) are imported where they are used, so that a search with
nano starts quickly.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from anchorfold.databases.urls import is_url
from anchorfold.errors import AnchorFoldError
from anchorfold.indexes.index_model import IndexModel
from anchorfold.retrieval.derived import NO_WORD, check_where, has_searchable_pages, no_match_reason, require_text
from anchorfold.retrieval.hybrid import hybrid_hits
from anchorfold.storage.hits import Hit, Mode, SearchRequest, best_per_document, matching
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.info import Facet
from anchorfold.storage.page_content import PageContent
from anchorfold.storage.protocol import PageStore
from anchorfold.storage.records import Version
from anchorfold.storage.text_search import has_phrase

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image
    from torch import Tensor

    from anchorfold.backbones.encoder import Encoder
    from anchorfold.compressors import Compressor
    from anchorfold.page import EncodedPage, PatchGrid
    from anchorfold.storage.info import IndexInfo


class NoSuchPageError(AnchorFoldError, LookupError):
    """The index does not contain the page."""


@dataclass(frozen=True)
class Page:
    """A stored page.

    Attributes:
        document: name of the document as given when it was indexed.
        page: page number, from 1.
        source: absolute path of the document.
        pages: number of pages of the document.
        digest: digest of the file.
        size: bytes of the file.
        modified: modification time of the file in nanoseconds.
        full: number of vectors before compression.
        kept: number of stored vectors; 0 if the page could not be read.
        thumbnail: WebP or JPEG thumbnail; empty if none is stored.
        problem: why the page could not be read.
        metadata: metadata of the document, from the file and given by the user.
        text: text of the page; None if it is not stored.
        encoded: vectors and provenance in float32; None if the page could not be read.

    Examples:
        >>> page = index.page("reports/annual.pdf", 2)
        >>> page.pages, page.kept < page.full
        (2, True)
    """

    document: str
    page: int
    source: str
    pages: int
    digest: str
    size: int
    modified: int
    full: int
    kept: int
    thumbnail: bytes = field(repr=False)
    problem: str | None
    metadata: Mapping[str, Any]
    text: str | None = field(default=None, repr=False)
    encoded: EncodedPage | None = field(default=None, repr=False, compare=False)

    @property
    def vectors(self) -> Tensor:
        """`(kept, d)` vectors in float32.

        Raises:
            AnchorFoldError: the page could not be read when it was indexed.
        """
        return self.require_encoded().vectors

    @property
    def grid(self) -> PatchGrid | None:
        """Positions of the patches on the page; None if the model does not define them."""
        return self.require_encoded().grid

    def require_encoded(self) -> EncodedPage:
        """Return `encoded`; raise AnchorFoldError if the page could not be read when it was indexed."""
        if self.encoded is None:
            raise AnchorFoldError(f"{self.document} page {self.page} has no vectors: {self.problem or 'not loaded'}.")
        return self.encoded

    @property
    def has_original(self) -> bool:
        """Whether the original file exists with the size and modification time recorded when it was indexed."""
        from anchorfold.documents.original_pages import is_unchanged

        return is_unchanged(vars(self))

    def render(self, pixels: int) -> tuple[Image, bool]:
        """Return an image of at most `pixels` pixels, and whether it was rendered from the original file."""
        from anchorfold.documents.original_pages import find_image

        return find_image(vars(self), pixels)

    def image(self, pixels: int = 1000) -> Image:
        """Return the page as an image, at most `pixels` on its longer side.

        It is rendered from the original file if that is unchanged; otherwise it is the stored thumbnail.
        """
        image, _ = self.render(pixels * pixels)
        image.thumbnail((pixels, pixels))
        return image


class IndexReader:
    """The part of `Index` that does not write."""

    def __init__(self, store: PageStore, model: IndexModel) -> None:
        self.store, self._loaded_model = store, model

    def __repr__(self) -> str:
        s = self.settings
        options = ", ".join(f"{name}={value}" for name, value in s.options.items())
        return f"{type(self).__name__}({self.location!r}, {len(self)} documents, {s.model}, {s.method}({options}))"

    def __len__(self) -> int:
        """Return the number of documents."""
        return len(self.store.names())

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the documents."""
        return iter(sorted(self.store.names().values()))

    @property
    def location(self) -> str:
        """Folder of the index, or its URL without password."""
        return self.store.location

    @property
    def path(self) -> Path:
        """Folder of the index.

        Raises:
            AnchorFoldError: the index is stored in a database.
        """
        if is_url(self.location):
            raise AnchorFoldError(f"{self.location} is not a folder: use `location` instead of `path`.")
        return Path(self.location)

    @property
    def settings(self) -> IndexSettings:
        """Settings that the index was created with."""
        return self.store.settings

    @property
    def version(self) -> Version:
        """Version of the newest commit; differs after every change."""
        return self.store.version

    @property
    def _model(self) -> IndexModel:
        """The model for the current settings: the index may have been re-created with others."""
        if self._loaded_model.settings is not self.store.settings:
            self._loaded_model = self._loaded_model.for_settings(self.store.settings)
        return self._loaded_model

    @property
    def encoder(self) -> Encoder:
        """Encoder of the index, loaded on first use."""
        return self._model.encoder

    @property
    def compressor(self) -> Compressor:
        """Compressor of the index with the layer settings that it was created with."""
        return self._model.compressor()

    @property
    def modes(self) -> list[Mode]:
        """Supported search modes, the default first."""
        return ["hybrid", "visual", "text"] if self.settings.text else ["visual"]

    def columns(self) -> dict[str, str]:
        """Return the columns that filters may use with their types: text, integer, float, boolean or date."""
        return self.store.columns()

    def facets(self, public: bool = False) -> list[Facet]:
        """Return columns with few values and document counts; with `public`, under public names."""
        return self.store.facets(public)

    def info(self) -> IndexInfo:
        """Return counts, sizes and settings."""
        return self.store.info()

    # Searching.

    @overload  # a str is a Sequence[str] too, so mypy reports an overlap
    def search(  # type: ignore[overload-overlap]
        self, query: str, top_k: int = 10, *, mode: Mode | None = None, documents: str | Sequence[str] | None = None,
        where: str | None = None, exact: bool = False, candidates: int | None = None, per_document: bool = False,
    ) -> list[Hit]: ...  # fmt: skip

    @overload
    def search(
        self, query: Sequence[str], top_k: int = 10, *, mode: Mode | None = None,
        documents: str | Sequence[str] | None = None, where: str | None = None, exact: bool = False,
        candidates: int | None = None, per_document: bool = False,
    ) -> list[list[Hit]]: ...  # fmt: skip

    def search(
        self, query: str | Sequence[str], top_k: int = 10, *, mode: Mode | None = None,
        documents: str | Sequence[str] | None = None, where: str | None = None, exact: bool = False,
        candidates: int | None = None, per_document: bool = False,
    ) -> list[Hit] | list[list[Hit]]:  # fmt: skip
        """Return the best pages: a list of hits for one query, or one list per query for several.

        Args:
            query: one or several query texts.
            top_k: maximum number of hits per query.
            mode: "visual" (MaxSim), "text" (BM25) or "hybrid" (both, the default if the index stores text).
            documents: names, paths, folders or patterns such as `*.pdf` of the documents to search.
            where: SQL condition on columns such as `year >= 2024 and department = 'sales'` (`docs/guides/filters.md`).
            exact: score every page; otherwise large indexes select candidates first. Scores are the same either way.
            candidates: number of pages to score if not `exact`; 4,000 by default.
            per_document: return the best page of each document only.

        Raises:
            InvalidArgumentError: an argument is out of range.
            FilterError: the filter is invalid.
        """
        texts = [query] if isinstance(query, str) else list(query)
        request = SearchRequest(
            texts, top_k=top_k, mode=mode, documents=documents, where=where, exact=exact, candidates=candidates,
            per_document=per_document,
        )  # fmt: skip
        results = self.run(request)
        return results[0] if isinstance(query, str) else results

    def search_vectors(
        self, queries: Sequence[Tensor | np.ndarray], top_k: int = 10, *,
        documents: str | Sequence[str] | None = None, where: str | None = None, exact: bool = False,
        candidates: int | None = None,
    ) -> list[list[Hit]]:  # fmt: skip
        """Search for queries that are already encoded as `(tokens, d)`; the options are those of `search`."""
        request = SearchRequest(
            vectors=queries, top_k=top_k, mode="visual", documents=documents, where=where, exact=exact,
            candidates=candidates,
        )  # fmt: skip
        return self.run(request)

    def similar(self, document: str, page: int, top_k: int = 10) -> list[Hit]:
        """Return the pages that are most similar to a stored page, whose vectors are the query.

        Args:
            document: name, path or pattern of the document.
            page: page number, from 1.
            top_k: maximum number of hits.

        Raises:
            NoSuchPageError: the index does not contain the page.

        Examples:
            >>> [(hit.document, hit.page) for hit in index.similar("reports/annual.pdf", 2, top_k=1)]
            [('reports/annual.pdf', 1)]
        """
        return self.similar_to(self.page(document, page), top_k)

    def similar_to(self, page: Page, top_k: int = 10, public: bool = False) -> list[Hit]:
        """Return the pages that are most similar to a page with vectors; with `public`, metadata without paths."""
        (hits,) = self.run(SearchRequest(vectors=[page.vectors], top_k=top_k + 1, mode="visual", public=public))
        return [hit for hit in hits if (hit.source, hit.page) != (page.source, page.page)][:top_k]

    def run(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the hits for each query of a request; `request.texts` are encoded."""
        self.store.refresh()
        if request.where is not None:
            check_where(self.store, request.where)  # before a model is loaded
        mode = request.mode or self.modes[0]
        if mode != "visual":
            require_text(self.store)
        if mode != "text" and request.texts:
            request = replace(request, vectors=self.encode_queries(request.texts))
        results = self._hits(mode, request)
        wanted = request.top_k
        while request.per_document:
            grouped = [best_per_document(hits) for hits in results]
            complete = all(
                len(best) >= wanted or len(hits) < request.top_k for best, hits in zip(grouped, results, strict=True)
            )
            if complete:
                results = [hits[:wanted] for hits in grouped]
                break
            request = replace(request, top_k=4 * request.top_k)
            results = self._hits(mode, request)
        return [[replace(hit, render=self._render) for hit in hits] for hits in results]

    def _hits(self, mode: Mode, request: SearchRequest) -> list[list[Hit]]:
        if mode == "hybrid":
            return hybrid_hits(self.store, request)
        return self.store.search_text(request) if mode == "text" else self.store.search_visual(request)

    def _render(self, hit: Hit, pixels: int) -> Image:
        return self.page_at(hit.source, hit.page, vectors=False).image(pixels)

    def encode_queries(self, texts: Sequence[str]) -> Sequence[Tensor | np.ndarray]:
        """Return `(tokens, d)` vectors of queries, from the light query encoder of the model if there is one."""
        return self._model.encode_queries(texts)

    def no_result_reason(self, query: str, mode: Mode | None = None, where: str | None = None) -> str:
        """Return why a search had no results."""
        if not self.store.names():
            return "the index is empty"
        mode = mode or self.modes[0]
        no_match = no_match_reason(self.store, query, where) if self.settings.text else ""
        if mode == "text" or no_match == NO_WORD:
            return no_match
        if where is not None and not has_searchable_pages(self.store, SearchRequest(where=where)):
            return "the filter matches no page"
        if not len(self.encode_queries([query])[0]):
            reason = f"the model {self.settings.model} recognizes no word of the query"
            return f"{reason}, and {no_match}" if mode == "hybrid" else reason
        if mode == "hybrid" and has_phrase(query):
            return no_match
        return "no page matches"

    # Pages.

    def page(self, document: str, page: int) -> Page:
        """Return a stored page.

        Args:
            document: name, path or pattern of the document.
            page: page number, from 1.

        Raises:
            NoSuchPageError: the index does not contain the page.
        """
        for source in matching(document, self.store.names()):
            with suppress(NoSuchPageError):
                return self.page_at(source, page)
        raise NoSuchPageError(f"{self.location} contains no page {page} of {document!r}.")

    def page_at(self, source: str, page: int, vectors: bool = True) -> Page:
        """Return a stored page by the absolute path of its document; without `vectors`, only its other fields."""

        def read(stored: PageContent) -> Page:
            encoded = stored.encoded() if vectors and stored.kept else None
            text = stored.text if vectors else None
            return Page(**stored.details(), metadata=stored.metadata, text=text, encoded=encoded)

        result = self.store.read_page(source, page, read)
        if result is None:
            raise NoSuchPageError(f"{self.location} contains no page {page} of {os.path.basename(source)!r}.")
        return result

    def export(self, to: str, target: str | Path, **options: Any) -> int:
        """Export all pages to another system, and return the number of pages written.

        Args:
            to: "qdrant", "parquet", "npz", or the name of an installed exporter.
            target: file, folder or URL.
            **options: options of the exporter.
        """
        from anchorfold.exporters import EXPORTERS

        return self.store.export_pages(lambda pages: EXPORTERS[to].write(pages, target, **options))
