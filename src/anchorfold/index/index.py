"""An index of documents on disk: add, search, remove, export. The same that the command line offers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, overload

import pyarrow as pa
import torch
from torch import Tensor

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones import DEFAULT_MODEL
from anchorfold.backbones.encoder import PageEncoder
from anchorfold.compressors import COMPRESSORS, Compressor, Pinned
from anchorfold.documents.files import matches, require_name
from anchorfold.documents.listing import Listing, list_documents
from anchorfold.errors import AnchorFoldError, LockedError, NotAnIndexError
from anchorfold.index.export import EXPORTERS
from anchorfold.index.ingest import AddReport, Ingest, Progress
from anchorfold.index.model import IndexModel, load_model
from anchorfold.index.options import DEFAULT_DTYPE, choose_compressor, plain_options, require_same, require_usable
from anchorfold.index.scan import Scanner
from anchorfold.index.store.flat import FlatIndex, open_flat
from anchorfold.index.store.folder import make_folder
from anchorfold.index.store.info import IndexInfo, index_info
from anchorfold.index.store.lock import writer_lock
from anchorfold.index.store.schema import IndexSettings, encoded_of
from anchorfold.index.store.table import PageTable
from anchorfold.page import EncodedPage

# All that is known of a page besides its vectors.
DETAILS = (
    "source", "document", "page", "pages", "digest", "size", "modified", "full", "kept", "thumbnail", "problem",
)  # fmt: skip
CREATION_WAIT = 30.0  # seconds for somebody else who makes the same index


@dataclass(frozen=True)
class Hit:
    """A page that answers a query. `document` is its path as given when it was indexed, `page` counts from 1.

    >>> hit = index.search("net revenue by region")[0]
    >>> hit.document, hit.page
    ('reports/annual.pdf', 2)
    """

    document: str
    page: int
    score: float
    source: str


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
        self._scanner: Scanner | None = None
        self._opening = threading.Lock()

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: str | PageEncoder = DEFAULT_MODEL,
        compressor: Compressor | None = None,
        *,
        dtype: str | None = None,
        thumbnails: bool = True,
        **load_options: Any,
    ) -> Self:
        """A new, empty index.

        Args:
            path: a folder that is empty or does not exist.
            model: what `anchorfold.load` takes, or an encoder.
            compressor: what makes pages smaller; `AnchorFold(ratio=0.2)`, five times smaller, if None.
            dtype: of stored vectors: float16 (if None), float32 or int8.
            thumbnails: keep a small picture of each page.
            **load_options: for `anchorfold.load`.
        """
        if _opened(Path(path)) is not None:
            raise AnchorFoldError(f"{path} holds an index already: open it, or choose another folder.")
        return cls._create(Path(path), model, compressor, dtype, thumbnails, load_options)

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
        dtype: str | None = None,
        thumbnails: bool = True,
        **load_options: Any,
    ) -> Self:
        """The index at a path, made if there is none.

        The arguments are those of `create`; what is given must agree with an index that exists, and None does.
        """
        table = _opened(Path(path))
        if table is None:
            return cls._create(Path(path), model or DEFAULT_MODEL, compressor, dtype, thumbnails, load_options)
        require_same(table.settings, compressor, dtype)
        return cls(table, IndexModel(table.folder, table.settings, model, load_options))

    @classmethod
    def _create(
        cls, folder: Path, model: str | PageEncoder, compressor: Compressor | None, dtype: str | None,
        thumbnails: bool, load_options: dict[str, Any],
    ) -> Self:  # fmt: skip
        compressor, dtype = compressor or choose_compressor(), dtype or DEFAULT_DTYPE
        require_usable(compressor, dtype)
        make_folder(folder)
        encoder = load_model(model, load_options) if isinstance(model, str) else model
        if obstacle := compressor.obstacle(encoder.settings):
            raise AnchorFoldError(obstacle)
        settings = IndexSettings(
            model=encoder.name, load_options=dict(encoder.load_options), fingerprint=encoder.fingerprint,
            dim=encoder.dim, method=compressor.name, options=plain_options(compressor), dtype=dtype,
            thumbnails=thumbnails, layers=asdict(encoder.settings),
        )  # fmt: skip
        if compressor.signals(encoder.settings):
            encoder.warn_if_causal()
        with writer_lock(folder, CREATION_WAIT):
            # Somebody else may have made it while the model was loaded.
            table = _opened(folder) or PageTable.create(folder, settings)
        require_same(table.settings, compressor, dtype)
        return cls(table, IndexModel(table.folder, table.settings, encoder, load_options))

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
        settings = self.settings
        if settings.layers is not None:
            layers = LayerSettings.from_dict(settings.layers)
        else:  # version 0.1 kept the window and the depth alone
            layers = replace(self.model.settings, window=settings.window, steps=settings.steps)
        return Pinned(COMPRESSORS[settings.method](**settings.options), layers)

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
        prune: bool = False,
        progress: Callable[[Progress], None] | None = None,
        stop: Callable[[], bool] | None = None,
        batch_size: int | None = None,
        wait: float = -1,
        waiting: Callable[[str], None] | None = None,
    ) -> AddReport:
        """Add documents, or bring them up to date: only what changed is encoded.

        Args:
            paths: files or folders (PDF, PNG, JPEG, WebP, TIFF), or a listing of them that was made before.
            prune: drop documents of these folders that are no longer on disk.
            progress: called after every page.
            stop: asked after every page; True ends the run after the current batch, which is committed.
            batch_size: pages a forward pass.
            wait: seconds to wait for another writer; negative waits for ever, 0 does not.
            waiting: called with a sentence on whom it waits for.
        """
        if batch_size is not None and batch_size < 1:
            raise AnchorFoldError(f"a batch needs at least 1 page, got {batch_size}.")
        listing = paths if isinstance(paths, Listing) else list_documents(paths, exclude=self.path)
        try:
            with self._writing(wait, waiting, stop):
                ingest = Ingest(self._table, self.model, self.compressor, progress, stop, batch_size)
                report = ingest.run(listing, prune)
                self._table.finish()
        except LockedError:
            if stop is None or not stop():
                raise
            return AddReport(interrupted=True)
        if report.pages or report.removed:
            self._open_scanner()
        return report

    def remove(self, names: str | Path | Sequence[str | Path], *, wait: float = -1) -> list[str]:
        """Remove documents by name as given, path, folder or pattern; returns the names removed."""
        with self._writing(wait):
            chosen = self._matching(names)
            self._table.remove(chosen)
        return sorted(chosen.values())

    def matching(self, names: str | Path | Sequence[str | Path]) -> list[str]:
        """The documents that `remove` would remove."""
        self._table.refresh()
        return sorted(self._matching(names).values())

    def _matching(self, names: str | Path | Sequence[str | Path]) -> dict[str, str]:
        names = [names] if isinstance(names, (str, Path)) else list(names)
        documents = {source: state.document for source, state in self._table.documents().items()}
        chosen: dict[str, str] = {}
        for name in map(str, names):
            matched = {s: d for s, d in documents.items() if matches(name, d, s)}
            if not matched:
                raise AnchorFoldError(f"{self.path} holds no document {name!r}: nothing was removed.")
            chosen |= matched
        return chosen

    # Reading.

    @overload  # a text is a sequence of texts too, so the checker sees an overlap where none is meant
    def search(  # type: ignore[overload-overlap]
        self, query: str, top: int = 10, *, documents: str | Sequence[str] | None = None, exact: bool | None = None
    ) -> list[Hit]: ...

    @overload
    def search(
        self, query: Sequence[str], top: int = 10, *, documents: str | Sequence[str] | None = None,
        exact: bool | None = None,
    ) -> list[list[Hit]]: ...  # fmt: skip

    def search(
        self,
        query: str | Sequence[str],
        top: int = 10,
        *,
        documents: str | Sequence[str] | None = None,
        exact: bool | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """The best pages: a list of hits for one query, a list of such lists for several.

        Args:
            query: a text or several.
            top: pages a query.
            documents: only pages of these: names, paths, folders or patterns such as `*.pdf`.
            exact: True scans all vectors in float; None takes what is quicker on this machine: on large indexes often
                an int8 scan, then exact scores of the best hundred.
        """
        texts = [query] if isinstance(query, str) else list(query)
        if top < 1:
            raise AnchorFoldError(f"top must be at least 1, got {top}.")
        hits = self.search_vectors(self._model.encode_queries(texts), top, documents=documents, exact=exact)
        return hits[0] if isinstance(query, str) else hits

    def search_vectors(
        self,
        queries: Sequence[Tensor],
        top: int = 10,
        *,
        documents: str | Sequence[str] | None = None,
        exact: bool | None = None,
    ) -> list[list[Hit]]:
        """As `search`, for queries that are encoded already, `(tokens, d)` each."""
        scanner = self._open_scanner()
        pages = scanner.flat.pages
        allowed = None if documents is None else self._allowed(documents, pages)
        results = []
        for ranking in scanner.top(queries, top, allowed, exact):
            rows = pages.take([number for number, _ in ranking]).to_pylist() if ranking else []
            scored = zip(rows, ranking, strict=True)
            results.append([Hit(row["document"], row["page"], score, row["source"]) for row, (_, score) in scored])
        return results

    def flat(self) -> FlatIndex:
        """The flat copy of the newest version."""
        return self._open_scanner().flat

    def _open_scanner(self) -> Scanner:
        with self._opening:
            version = self._table.refresh()
            if self._scanner is None or self._scanner.flat.version != version:
                self._scanner = Scanner(self._table.snapshot(open_flat))
            return self._scanner

    def _allowed(self, documents: str | Sequence[str], pages: pa.Table) -> Tensor:
        wanted = [documents] if isinstance(documents, str) else list(documents)
        for name in wanted:
            require_name(name)
        exactly = set(wanted)
        known = set(pages["document"].to_pylist()) | set(pages["source"].to_pylist())
        patterns = [w for w in wanted if w not in known]
        verdict: dict[tuple[str, str], bool] = {}
        mask = torch.zeros(pages.num_rows, dtype=torch.bool)
        for i, key in enumerate(zip(pages["document"].to_pylist(), pages["source"].to_pylist(), strict=True)):
            if key not in verdict:
                verdict[key] = key[0] in exactly or key[1] in exactly or any(matches(w, *key) for w in patterns)
            mask[i] = verdict[key]
        if not mask.any():
            raise AnchorFoldError(f"{self.path} holds no document that matches {', '.join(wanted)}.")
        return mask

    def page(self, document: str, page: int) -> tuple[EncodedPage, dict[str, Any]]:
        """One page as it is stored, and what else is known of it (source, document, thumbnail, ...)."""
        self._table.refresh()
        for source, state in self._table.documents().items():
            if matches(document, state.document, source) and page in state.have:
                return self.page_at(source, page)
        raise AnchorFoldError(f"{self.path} holds no page {page} of {document!r}.")

    def page_at(self, source: str, page: int) -> tuple[EncodedPage, dict[str, Any]]:
        """As `page`, by the absolute path of the document."""
        row = self._page_row(source, page)
        return encoded_of(row, 0), {name: row[name][0].as_py() for name in DETAILS}

    def details_at(self, source: str, page: int) -> dict[str, Any]:
        """What is known of a page, without reading its vectors."""
        row = self._page_row(source, page, DETAILS)
        return {name: row[name][0].as_py() for name in DETAILS}

    def _page_row(self, source: str, page: int, columns: Sequence[str] | None = None) -> pa.Table:
        row = self._table.page(source, page, columns)
        if row is None:
            raise AnchorFoldError(f"{self.path} holds no page {page} of {os.path.basename(source)!r}.")
        return row

    def info(self) -> IndexInfo:
        """Counts, sizes and settings."""
        return self._table.snapshot(index_info)

    def export(self, to: str, target: str | Path, **options: Any) -> int:
        """Write all pages elsewhere: `to` is qdrant, parquet, npz or another target that a package offers.

        Returns the number of pages written.
        """
        return self._table.snapshot(lambda table: EXPORTERS[to].write(table, target, **options))


def _opened(folder: Path) -> PageTable | None:
    """The table of a folder, or None if it holds none."""
    try:
        return PageTable.open(folder)
    except NotAnIndexError:
        return None
