"""`Index`: create, update, search and export an index of documents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from anchorfold.backbones import DEFAULT_MODEL
from anchorfold.errors import AnchorFoldError, InvalidArgumentError, LockedError
from anchorfold.indexes.index_model import IndexModel
from anchorfold.indexes.locations import check_location, find_store, open_store
from anchorfold.indexes.reader import IndexReader
from anchorfold.storage.checking import Damage
from anchorfold.storage.hits import as_names, matching

if TYPE_CHECKING:
    from anchorfold.backbones.encoder import Encoder
    from anchorfold.compressors import Compressor
    from anchorfold.documents.listing import DocumentListing
    from anchorfold.filters.metadata import Given, GivenValues, MetadataReport
    from anchorfold.ingestion.encoded_pages import PageSource, PageSourceFactory
    from anchorfold.ingestion.progress import AddReport, Progress


@dataclass(frozen=True)
class CheckReport:
    """Result of the verification of an index.

    Attributes:
        problems: files that differ from what was written, and the affected documents.
        repaired: whether the problems were repaired.
    """

    problems: tuple[Damage, ...]
    repaired: bool = False

    @property
    def ok(self) -> bool:
        """Whether no problem remains."""
        return self.repaired or not self.problems

    @classmethod
    def of(cls, path: str | Path, repair: bool = False) -> CheckReport:
        """Verify the index at a path or URL, even if it cannot be opened; with `repair`, repair it."""
        return cls(tuple(check_location(path, repair)), repair)


class Index(IndexReader):
    """Index of documents, in a folder or in a database. Create one with `Index.create`, open it with `Index.open`.

    Any number of processes may search while one process writes. New pages are visible to the next query.

    Examples:
        >>> from anchorfold import AnchorFold, Index
        >>> index = Index.create("my.index", compressor=AnchorFold(ratio=0.1))
        >>> index.add("reports").pages
        2
        >>> [(hit.document, hit.page) for hit in index.search("net revenue by region", top_k=1)]
        [('reports/annual.pdf', 2)]
    """

    @classmethod
    def create(
        cls,
        path: str | Path,
        encoder: str | Encoder = DEFAULT_MODEL,
        compressor: Compressor | None = None,
        *,
        bits: int | None = None,
        thumbnails: bool = True,
        provenance: bool = True,
        text: bool = True,
        ocr: bool = False,
        **load_options: Any,
    ) -> Self:
        """Create an empty index.

        Args:
            path: a folder that is empty or does not exist, or the URL of a database.
            encoder: an encoder, or a model name or path for `anchorfold.load`.
            compressor: compressor of pages. By default `AnchorFold(ratio=0.2)`; for a causal model
                `FocusClustering(ratio=0.2, graph="mirrored-symmetric")`.
            bits: bits per vector component: 32 (float32), 16 (default), 8, 4, 2 or 1.
            thumbnails: store a thumbnail of each page.
            provenance: store the patches behind each vector; required by explanations.
            text: store the text of pages; required by text and hybrid search.
            ocr: read pages without a text layer with RapidOCR (`anchorfold[ocr]`).
            **load_options: options of `anchorfold.load`.
        """
        from anchorfold.indexes.creation import create_index

        if (existing := find_store(path)) is not None:
            raise AnchorFoldError(f"{existing.location} contains an index already: open it, or choose another folder.")
        store, loaded = create_index(path, encoder, compressor, load_options, bits, thumbnails, provenance, text, ocr)
        return cls(store, IndexModel(store.location, store.settings, loaded, load_options))

    @classmethod
    def open(cls, path: str | Path, encoder: str | Encoder | None = None, **load_options: Any) -> Self:
        """Open an existing index.

        Args:
            path: folder or URL of the index.
            encoder: an encoder, or a model name or path that overrides the one stored in the index. The model is loaded
                on first use; other weights raise MismatchError.
            **load_options: options of `anchorfold.load`.
        """
        store = open_store(path)
        return cls(store, IndexModel(store.location, store.settings, encoder, load_options))

    @classmethod
    def open_or_create(
        cls,
        path: str | Path,
        encoder: str | Encoder | None = None,
        compressor: Compressor | None = None,
        *,
        bits: int | None = None,
        thumbnails: bool = True,
        provenance: bool = True,
        text: bool | None = None,
        ocr: bool | None = None,
        **load_options: Any,
    ) -> Self:
        """Open the index at a path, or create it if there is none.

        The arguments are those of `create`; compressor and bits must agree with an existing index unless they are None.
        Text and OCR can be enabled for an existing index: the next `add` reads the text of the stored pages.
        """
        from anchorfold.indexes.creation import create_index, require_same
        from anchorfold.ingestion.text_extraction import add_text

        store = find_store(path)
        if store is None:
            store, encoder = create_index(
                path, encoder or DEFAULT_MODEL, compressor, load_options, bits, thumbnails, provenance,
                text is not False, bool(ocr),
            )  # fmt: skip
        require_same(store.settings, compressor, bits, load_options.get("dim"))
        add_text(store, text, ocr)
        return cls(store, IndexModel(store.location, store.settings, encoder, load_options))

    def add(
        self,
        paths: str | Path | Sequence[str | Path] | DocumentListing,
        *,
        metadata: Given | None = None,
        prune: bool = False,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        batch_size: int | None = None,
        cluster: PageSourceFactory | None = None,
        wait: float = -1,
        waiting: Callable[[str], None] | None = None,
    ) -> AddReport:
        """Add or update documents. Unchanged files are skipped.

        Args:
            paths: files or folders, or a `DocumentListing` of them.
            metadata: metadata of these documents for filters: values by column, a function from a path to such values,
                or the path of a table (CSV, JSON lines, Parquet) whose first column is a path or pattern. None removes
                a value. The metadata of unchanged documents is updated too.
            prune: remove documents whose files were deleted from these folders.
            progress: called after every page.
            stop: polled after every page; if it returns True, the run ends after committing the current batch.
            batch_size: batch size in pages.
            cluster: an `anchorfold.cluster.Cluster` that encodes the pages; by default this process does.
            wait: seconds to wait for another writer; negative waits without limit.
            waiting: called with a message when another writer holds the lock.

        Raises:
            LockedError: another process is writing to the index.
        """
        from anchorfold.documents.listing import DocumentListing, list_documents
        from anchorfold.ingestion.ingest import Ingest
        from anchorfold.ingestion.progress import AddReport
        from anchorfold.ingestion.text_extraction import read_missing

        if batch_size is not None and batch_size < 1:
            raise InvalidArgumentError(f"batch_size must be at least 1, got {batch_size}.")
        listing = paths if isinstance(paths, DocumentListing) else list_documents(paths, exclude=self.location)
        try:
            sources = None if prune else {document.source for document in listing.documents}
            with self.store.writing(wait, waiting, stop, sources):
                given = self._parse_metadata(metadata, {d.source: d.name for d in listing.documents})
                with self._page_source(batch_size, cluster) as source:
                    report = Ingest(self.store, source, progress, stop, given).run(listing, prune)
                    report.texts = read_missing(
                        self.store, listing.documents, lambda: self.encoder.page_pixels, stop, progress
                    )
                self.store.finish()
        except LockedError:
            if stop is None or not stop():
                raise
            return AddReport(interrupted=True)
        return report

    def _page_source(
        self, batch_size: int | None, cluster: PageSourceFactory | None
    ) -> AbstractContextManager[PageSource]:
        if cluster is not None:
            return cluster.source(self._model.encoding_job(batch_size))
        from anchorfold.ingestion.encoded_pages import LocalPageSource
        from anchorfold.ingestion.text_extraction import PageTextReader

        return nullcontext(
            LocalPageSource(lambda: (self.encoder, self.compressor), PageTextReader(self.settings), batch_size)
        )

    def _parse_metadata(self, metadata: Given | None, documents: Mapping[str, str]) -> GivenValues:
        """Validate metadata for documents, given as path to name; stored names take precedence."""
        from anchorfold.filters.metadata import GivenValues, KnownColumns, given_values

        if metadata is None:
            return GivenValues()
        names = self.store.names()
        known = KnownColumns(self.store.columns(), self.store.documents_with)
        given = given_values(metadata, {s: names.get(s, name) for s, name in documents.items()}, known)
        if given.unmatched and not given.values:
            raise AnchorFoldError(
                f"{metadata} matches none of the {len(documents):,} documents: its first column contains "
                f"{given.unmatched[0]!r}. Write names, paths, folders or patterns such as '*.pdf' there."
            )
        return given

    def set_metadata(
        self, metadata: Given, *, documents: str | Sequence[str] | None = None, wait: float = -1
    ) -> MetadataReport:
        """Set metadata of indexed documents for filters. No file is read or encoded.

        Args:
            metadata: as for `add`.
            documents: names, paths, folders or patterns of the documents; all by default.
            wait: seconds to wait for another writer; negative waits without limit.

        Examples:
            >>> index.set_metadata({"year": 2024, "department": "sales"}, documents="*.pdf").documents
            1
            >>> [hit.page for hit in index.search("net revenue by region", top_k=1, where="year >= 2024")]
            [2]
        """
        from anchorfold.filters.metadata import MetadataReport

        with self.store.writing(wait):
            selected = self.store.names() if documents is None else self._matching(documents)
            given = self._parse_metadata(metadata, selected)
            return MetadataReport(self.store.set_metadata(given.values, given.types), given.unmatched)

    def remove(self, names: str | Path | Sequence[str | Path], *, wait: float = -1) -> list[str]:
        """Remove documents by name, path, folder or pattern, and return their names."""
        with self.store.writing(wait):
            selected = self._matching(names)
            self.store.remove(list(selected))
            self.store.finish()
        return sorted(selected.values())

    def matching(self, names: str | Path | Sequence[str | Path]) -> list[str]:
        """Return the names of the documents that `remove` would remove."""
        return sorted(self._matching(names).values())

    def _matching(self, names: str | Path | Sequence[str | Path]) -> dict[str, str]:
        documents = {source: state.document for source, state in self.store.documents().items()}
        selected: dict[str, str] = {}
        for name in as_names(names):
            matches = matching(name, documents)
            if not matches:
                raise AnchorFoldError(f"{self.location} contains no document {name!r}: nothing was changed.")
            selected |= matches
        return selected

    def check(self, repair: bool = False) -> CheckReport:
        """Verify every checksum, count and reference; with `repair`, move damaged data to `lost/`."""
        return CheckReport(tuple(self.store.check(repair)), repair)
