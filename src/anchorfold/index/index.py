"""An index of documents on disk: add, search, remove, export. The same that the command line offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from anchorfold.backbones import DEFAULT_MODEL
from anchorfold.errors import AnchorFoldError, LockedError
from anchorfold.index.embedded import EmbeddedStore
from anchorfold.index.model import IndexModel
from anchorfold.index.reader import IndexReader
from anchorfold.index.selection import as_names, matching

if TYPE_CHECKING:
    from anchorfold.backbones.encoder import PageEncoder
    from anchorfold.compressors import Compressor
    from anchorfold.documents.listing import Listing
    from anchorfold.index.filters.given import Described, Given, GivenValues
    from anchorfold.index.progress import AddReport, Progress
    from anchorfold.index.source import PageSource, SourceMaker


class Index(IndexReader):
    """A folder with a table of pages. Make one with `Index.create`, come back to it with `Index.open`.

    Any number of processes may search at once, and one may write; searching sees new pages at its next query.

    >>> from anchorfold import AnchorFold, Index
    >>> index = Index.create("my.index", compressor=AnchorFold(ratio=0.1))
    >>> index.add("reports").pages
    2
    >>> [(hit.document, hit.page) for hit in index.search("net revenue by region", top=1)]
    [('reports/annual.pdf', 2)]
    """

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
        store, encoder = make_index(Path(path), model, compressor, options, load_options)
        return cls(store, IndexModel(store.folder, store.settings, encoder, load_options))

    @classmethod
    def open(cls, path: str | Path, model: str | PageEncoder | None = None, **load_options: Any) -> Self:
        """An index that exists.

        Args:
            path: its folder.
            model: an encoder, or where its model is now; the one that it was made with if None. It is loaded when it
                is first needed, and refused if its weights are others.
            **load_options: for `anchorfold.load`.
        """
        store = EmbeddedStore.open(Path(path))
        return cls(store, IndexModel(store.folder, store.settings, model, load_options))

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

        store = opened(Path(path))
        if store is None:
            options = StoreOptions(bits, thumbnails, provenance, text is not False, bool(ocr))
            store, model = make_index(Path(path), model or DEFAULT_MODEL, compressor, options, load_options)
        require_same(store.settings, compressor, bits)
        add_text(store, text, ocr)
        return cls(store, IndexModel(store.folder, store.settings, model, load_options))

    # Writing.

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
        from anchorfold.index.ingest import Ingest
        from anchorfold.index.progress import AddReport
        from anchorfold.index.reading import read_missing

        if batch_size is not None and batch_size < 1:
            raise AnchorFoldError(f"a batch needs at least 1 page, got {batch_size}.")
        listing = paths if isinstance(paths, Listing) else list_documents(paths, exclude=self.path)
        try:
            with self._store.writing(wait, waiting, stop):
                given = self._given(metadata, {d.source: d.name for d in listing.documents})
                with self._source(batch_size, cluster) as source:
                    report = Ingest(self._store, source, progress, stop, given).run(listing, prune)
                    report.texts = read_missing(
                        self._store, listing.documents, lambda: self.model.page_pixels, stop, progress
                    )
                self._store.finish()
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
        from anchorfold.index.filters.given import GivenValues, KnownColumns, given_values

        if metadata is None:
            return GivenValues()
        names = self._store.names()
        known = KnownColumns(self._store.columns(), self._store.documents_with)
        given = given_values(metadata, {s: names.get(s, name) for s, name in documents.items()}, known)
        if given.unmatched and not given.values:
            raise AnchorFoldError(
                f"{metadata} matches none of the {len(documents):,} documents: its first column contains "
                f"{given.unmatched[0]!r}. Write names, paths, folders or patterns such as '*.pdf' there."
            )
        return given

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

        with self._store.writing(wait):
            chosen = self._store.names() if documents is None else self._matching(documents)
            given = self._given(metadata, chosen)
            return Described(self._store.set_metadata(given.values, given.types), given.unmatched)

    def remove(self, names: str | Path | Sequence[str | Path], *, wait: float = -1) -> list[str]:
        """Remove documents by name as given, path, folder or pattern; returns the names removed."""
        with self._store.writing(wait):
            chosen = self._matching(names)
            self._store.remove(list(chosen))
            self._store.finish()
        return sorted(chosen.values())

    def matching(self, names: str | Path | Sequence[str | Path]) -> list[str]:
        """The documents that `remove` would remove."""
        return sorted(self._matching(names).values())

    def _matching(self, names: str | Path | Sequence[str | Path]) -> dict[str, str]:
        documents = {source: state.document for source, state in self._store.documents().items()}
        chosen: dict[str, str] = {}
        for name in as_names(names):
            matched = matching(name, documents)
            if not matched:
                raise AnchorFoldError(f"{self.path} holds no document {name!r}: nothing was changed.")
            chosen |= matched
        return chosen
