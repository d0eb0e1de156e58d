"""An index of documents on disk: add, search, remove, export. The same that the command line offers.

What a search does not need (torch, models, documents) is imported where it is needed: a search with nano starts in a
moment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from anchorfold.backbones import DEFAULT_MODEL
from anchorfold.errors import AnchorFoldError, LockedError
from anchorfold.index.filters.columns import Facet, Where
from anchorfold.index.hybrid import Mode, TextSearch, require_mode
from anchorfold.index.live import LivePages
from anchorfold.index.model import IndexModel
from anchorfold.index.scan import Scanner
from anchorfold.index.searching import Hit, PageSearch
from anchorfold.index.selection import as_names, matching
from anchorfold.index.store.lock import writer_lock
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
    from anchorfold.documents.listing import Listing
    from anchorfold.index.filters.given import Described, Given, GivenValues
    from anchorfold.index.progress import AddReport, Progress
    from anchorfold.index.source import PageSource, SourceMaker
    from anchorfold.index.store.info import IndexInfo
    from anchorfold.page import EncodedPage
T = TypeVar("T")


class NoSuchPageError(AnchorFoldError):
    """The index holds no such page."""


class Index:
    """A folder with a table of pages. Make one with `Index.create`, come back to it with `Index.open`.

    Any number of processes may search at once, and one may write; searching sees new pages at its next query.

    >>> from anchorfold import AnchorFold, Index
    >>> index = Index.create("my.index", compressor=AnchorFold(ratio=0.1))
    >>> index.add("reports").pages
    2
    >>> [(hit.document, hit.page) for hit in index.search("net revenue by region", top=1)]
    [('reports/annual.pdf', 2)]
    """

    def __init__(self, table: PageTable, model: IndexModel) -> None:
        self._table, self._model = table, model
        self._search = PageSearch(table)
        self._texts = TextSearch(self._search)

    @property
    def _text_search(self) -> TextSearch:
        if self._texts.search is not self._search:  # shards took its place
            self._texts = TextSearch(self._search)
        return self._texts

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: str | PageEncoder = DEFAULT_MODEL,
        compressor: Compressor | None = None,
        *,
        bits: int | None = None,
        thumbnails: bool = True,
        provenance: bool = True,
        text: bool = True,
        ocr: bool = False,
        **load_options: Any,
    ) -> Self:
        """A new, empty index.

        Args:
            path: a folder that is empty or does not exist.
            model: what `anchorfold.load` takes, or an encoder.
            compressor: what makes pages smaller; `AnchorFold(ratio=0.2)`, five times smaller, if None.
            bits: a stored number takes: 16 (if None), 8, 4, 2 or 1; 32 for float32.
            thumbnails: keep a small picture of each page.
            provenance: keep which patches each vector comes from, which explaining an answer needs.
            text: keep the text of pages, for searching by it.
            ocr: read pages without a text layer with RapidOCR (`anchorfold[ocr]`).
            **load_options: for `anchorfold.load`.
        """
        from anchorfold.index.making import StoreOptions, make_index, opened

        if opened(Path(path)) is not None:
            raise AnchorFoldError(f"{path} holds an index already: open it, or choose another folder.")
        options = StoreOptions(bits, thumbnails, provenance, text, ocr)
        table, encoder = make_index(Path(path), model, compressor, options, load_options)
        return cls(table, IndexModel(table.folder, table.settings, encoder, load_options))

    @classmethod
    def open(cls, path: str | Path, model: str | PageEncoder | None = None, **load_options: Any) -> Self:
        """An index that exists.

        Args:
            path: its folder.
            model: an encoder, or where its model is now; the one that it was made with if None. It is loaded when it
                is first needed, and refused if its weights are others.
            **load_options: for `anchorfold.load`.
        """
        table = PageTable.open(Path(path))
        return cls(table, IndexModel(table.folder, table.settings, model, load_options))

    @classmethod
    def open_or_create(
        cls,
        path: str | Path,
        model: str | PageEncoder | None = None,
        compressor: Compressor | None = None,
        *,
        bits: int | None = None,
        thumbnails: bool = True,
        provenance: bool = True,
        text: bool | None = None,
        ocr: bool | None = None,
        **load_options: Any,
    ) -> Self:
        """The index at a path, made if there is none.

        The arguments are those of `create`; what is given must agree with an index that exists, and None does. Text and
        OCR can be added to an index that has none: the next `add` reads the text of the pages that are there.
        """
        from anchorfold.index.making import StoreOptions, make_index, opened
        from anchorfold.index.options import require_same
        from anchorfold.index.reading import add_text

        table = opened(Path(path))
        if table is None:
            options = StoreOptions(bits, thumbnails, provenance, text is not False, bool(ocr))
            table, model = make_index(Path(path), model or DEFAULT_MODEL, compressor, options, load_options)
        require_same(table.settings, compressor, bits)
        add_text(table, text, ocr)
        return cls(table, IndexModel(table.folder, table.settings, model, load_options))

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

    # Writing.

    @contextmanager
    def _writing(
        self,
        wait: float,
        waiting: Callable[[str], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Iterator[None]:
        with writer_lock(self.path, wait, waiting, stop):
            self._table.refresh()
            yield

    def add(
        self,
        paths: str | Path | Sequence[str | Path] | Listing,
        *,
        metadata: Given | None = None,
        prune: bool = False,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        batch_size: int | None = None,
        cluster: SourceMaker | None = None,
        wait: float = -1,
        waiting: Callable[[str], None] | None = None,
    ) -> AddReport:
        """Add documents, or bring them up to date: only what changed is encoded.

        Args:
            paths: files or folders (PDF, PNG, JPEG, WebP, TIFF), or a listing of them that was made before.
            metadata: what to know of these documents, for filters: values by column for all of them, a function that
                gives such a mapping for a path, or the path of a table (CSV, JSON lines, Parquet) whose first column is
                a path or a pattern. None takes a value away. It is stored for documents that did not change as well,
                and nothing is encoded for it.
            prune: drop documents of these folders that are no longer on disk.
            progress: called after every page.
            stop: asked after every page; True ends the run after the current batch, which is committed.
            batch_size: pages a forward pass.
            cluster: who encodes, such as `anchorfold.cluster.Cluster`; this process if None.
            wait: seconds to wait for another writer; negative waits for ever, 0 does not.
            waiting: called with a sentence on whom it waits for.
        """
        from anchorfold.documents.listing import Listing, list_documents
        from anchorfold.index.candidate_files import update_lists
        from anchorfold.index.ingest import Ingest
        from anchorfold.index.progress import AddReport
        from anchorfold.index.reading import read_missing

        if batch_size is not None and batch_size < 1:
            raise AnchorFoldError(f"a batch needs at least 1 page, got {batch_size}.")
        listing = paths if isinstance(paths, Listing) else list_documents(paths, exclude=self.path)
        try:
            with self._writing(wait, waiting, stop):
                given = self._given(metadata, {d.source: d.name for d in listing.documents})
                with self._source(batch_size, cluster) as source:
                    report = Ingest(self._table, source, progress, stop, given).run(listing, prune)
                    report.texts = read_missing(self._table, listing.documents, lambda: self.model.page_pixels, stop)
                self._table.tidy()
                update_lists(self._table)
        except LockedError:
            if stop is None or not stop():
                raise
            return AddReport(interrupted=True)
        return report

    def _source(self, batch_size: int | None, cluster: SourceMaker | None) -> AbstractContextManager[PageSource]:
        if cluster is not None:
            return cluster.source(self._model.recipe(batch_size))
        from anchorfold.index.reading import TextReader
        from anchorfold.index.source import LocalSource

        return nullcontext(LocalSource(lambda: (self.model, self.compressor), TextReader(self.settings), batch_size))

    def _given(self, metadata: Given | None, documents: Mapping[str, str]) -> GivenValues:
        """What is said of documents, source to name, checked; a name that the index knows already counts."""
        from anchorfold.index.filters.given import GivenValues, given_values

        if metadata is None:
            return GivenValues()
        state = self._table.state
        known = {s: next((v.name for v in state.versions(s).values()), name) for s, name in documents.items()}
        return given_values(metadata, known, state)

    def describe(self, metadata: Given, *, documents: str | Sequence[str] | None = None, wait: float = -1) -> Described:
        """Store what is known of indexed documents, for filters. Nothing is read or encoded.

        Args:
            metadata: as for `add`.
            documents: only these: names, paths, folders or patterns; all if None.
            wait: seconds to wait for another writer; negative waits for ever, 0 does not.

        >>> index.describe({"year": 2024, "department": "sales"}, documents="*.pdf").documents
        1
        >>> [hit.page for hit in index.search("net revenue by region", top=1, where="year >= 2024")]
        [2]
        """
        from anchorfold.index.filters.given import Described

        with self._writing(wait):
            state = self._table.state
            chosen = {version.source: version.name for version in state.documents.values()}
            if documents is not None:
                chosen = self._matching(documents)
            given = self._given(metadata, chosen)
            return Described(self._table.describe(given.values, given.types), given.unmatched)

    def remove(self, names: str | Path | Sequence[str | Path], *, wait: float = -1) -> list[str]:
        """Remove documents by name as given, path, folder or pattern; returns the names removed."""
        with self._writing(wait):
            chosen = self._matching(names)
            self._table.remove(chosen)
            self._table.tidy()
        return sorted(chosen.values())

    def matching(self, names: str | Path | Sequence[str | Path]) -> list[str]:
        """The documents that `remove` would remove."""
        self._table.refresh()
        return sorted(self._matching(names).values())

    def _matching(self, names: str | Path | Sequence[str | Path]) -> dict[str, str]:
        documents = {version.source: version.name for version in self._table.state.documents.values()}
        chosen: dict[str, str] = {}
        for name in as_names(names):
            matched = matching(name, documents)
            if not matched:
                raise AnchorFoldError(f"{self.path} holds no document {name!r}: nothing was changed.")
            chosen |= matched
        return chosen

    # Reading.

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
            candidates: how many pages to score then, 1,000 if None: `anchorfold bench agreement` tells what is enough.
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
