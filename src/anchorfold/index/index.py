"""An index of documents on disk: add, search, remove, export. The same that the command line offers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anchorfold.attention.layer_settings import DEFAULT_MODEL, LayerSettings
from anchorfold.backbones.nano.query_side import QuerySide
from anchorfold.compressors import Compressor, Pinned, compressor
from anchorfold.documents.files import matches, require_name
from anchorfold.errors import AnchorFoldError, LockedError, MismatchError
from anchorfold.index.ingest import AddReport, Ingest, Progress
from anchorfold.index.options import budget_options, require_same
from anchorfold.index.scan import Scanner
from anchorfold.index.store.flat import FlatIndex, open_flat
from anchorfold.index.store.folder import is_index, make_folder
from anchorfold.index.store.info import IndexInfo, index_info
from anchorfold.index.store.lock import writer_lock
from anchorfold.index.store.schema import DTYPES, IndexSettings, encoded_of
from anchorfold.index.store.table import PageTable
from anchorfold.page import EncodedPage

if TYPE_CHECKING:
    from anchorfold.backbones import Retriever

ABOUT_A_PAGE = (
    "source",
    "document",
    "page",
    "pages",
    "digest",
    "size",
    "modified",
    "full",
    "kept",
    "thumbnail",
    "problem",
)


@dataclass(frozen=True)
class Hit:
    """A page that answers a query. `document` is its path as given when it was indexed, `page` counts from 1."""

    document: str
    page: int
    score: float
    source: str


class Index:
    """A folder with a table of pages. Make one with `Index.create`, come back to it with `Index.open`.

    Any number of processes may search at once, and one may write; searching sees new pages at its next query.
    """

    def __init__(self, table: PageTable, model: str | Retriever | None, load_options: dict[str, Any]) -> None:
        self._table, self._given, self._load_options = table, model, load_options
        self._scanner: Scanner | None = None
        self._opening = threading.Lock()
        if model is not None and not isinstance(model, str):
            self._check(model)

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: str | Retriever = DEFAULT_MODEL,
        ratio: float | None = None,
        *,
        cap: int | None = None,
        method: str = "anchorfold",
        dtype: str = "float16",
        thumbnails: bool = True,
        exist_ok: bool = False,
        **load_options: Any,
    ) -> Index:
        """A new, empty index.

        Args:
            path: a folder that is empty or does not exist.
            model: what `anchorfold.load` takes, or a retriever.
            ratio: vectors kept of each page, 0.2 (five times smaller) if neither it nor `cap` is given.
            cap: or at most that many vectors a page.
            method: a compressor's name.
            dtype: of stored vectors: float16, float32 or int8.
            thumbnails: keep a small picture of each page.
            exist_ok: open the index instead if there is one already that was made with the same settings.
            **load_options: for `anchorfold.load`.
        """
        folder = Path(path)
        if dtype not in DTYPES:
            raise AnchorFoldError(f"vectors cannot be stored as {dtype!r}: choose one of {', '.join(DTYPES)}.")
        options = budget_options(method, ratio, cap)
        made = compressor(method, **options)
        make_folder(folder)
        retriever = load_model(model, load_options) if isinstance(model, str) else model
        settings = IndexSettings(
            model=retriever.name, fingerprint=retriever.fingerprint, dim=retriever.dim, method=method,
            options=options, window=retriever.settings.window, steps=retriever.settings.steps, dtype=dtype,
            thumbnails=thumbnails, load_options=getattr(retriever, "load_options", {}),
            layers=asdict(retriever.settings),
        )  # fmt: skip
        if made.signals(retriever.settings):
            retriever.warn_if_causal()
        with writer_lock(folder, wait=30):
            if is_index(folder):
                if not exist_ok:
                    raise AnchorFoldError(f"{folder} holds an index already: open it, or choose another folder.")
                table = PageTable.open(folder)
                require_same(table.settings, method, options, dtype)
            else:
                table = PageTable.create(folder, settings)
        return cls(table, retriever, load_options)

    @classmethod
    def open(cls, path: str | Path, model: str | Retriever | None = None, **load_options: Any) -> Index:
        """An index that exists.

        Args:
            path: its folder.
            model: a retriever, or where its model is now; the one that it was made with if None. It is loaded when it
                is first needed, and refused if its weights are others.
            **load_options: for `anchorfold.load`.
        """
        return cls(PageTable.open(Path(path)), model, load_options)

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

    @cached_property
    def model(self) -> Retriever:
        """The retriever that it was made with."""
        if self._given is not None and not isinstance(self._given, str):
            return self._given
        stored = dict(self.settings.load_options)
        if self.settings.bidirectional is not None:
            stored.setdefault("bidirectional", self.settings.bidirectional)
        if self._given is not None:
            stored.pop("revision", None)  # of the model's old place
        given = {k: v for k, v in self._load_options.items() if v is not None}
        try:
            model = load_model(self._given or self.settings.model, {**stored, **given})
        except (OSError, ValueError) as error:
            if self._given is not None:
                raise
            revision = f", revision {stored['revision']}" if stored.get("revision") else ""
            raise AnchorFoldError(
                f"{self.path} was made with the model {self.settings.model}{revision}, which cannot be loaded: {error} "
                "If it is elsewhere now, say where: --model on the command line, Index.open(path, model=...) in Python."
            ) from error
        self._check(model)
        return model

    @cached_property
    def compressor(self) -> Compressor:
        """The compressor that it was made with, bound to the layers of that time."""
        made_with = self.settings
        if made_with.layers is not None:
            layers = LayerSettings.from_dict(made_with.layers)
        else:
            layers = replace(self.model.settings, window=made_with.window, steps=made_with.steps)
        return Pinned(compressor(made_with.method, **made_with.options), layers)

    def _check(self, model: Retriever | QuerySide) -> None:
        if model.fingerprint != self.settings.fingerprint:
            raise MismatchError(
                f"{self.path} was made with another model ({self.settings.model}, fingerprint "
                f"{self.settings.fingerprint}; this one has {model.fingerprint}): load that one, or index again."
            )

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
        paths: str | Path | Sequence[str | Path],
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
            paths: files or folders: PDF, PNG, JPEG, WebP, TIFF.
            prune: drop documents of these folders that are no longer on disk.
            progress: told after every page.
            stop: asked after every page; True ends the run after the current batch, which is committed.
            batch_size: pages a forward pass.
            wait: seconds to wait for another writer; negative waits for ever, 0 does not.
            waiting: told, in a sentence, whom it waits for.
        """
        paths = [paths] if isinstance(paths, (str, Path)) else list(paths)
        if batch_size is not None and batch_size < 1:
            raise AnchorFoldError(f"a batch needs at least 1 page, got {batch_size}.")
        try:
            with self._writing(wait, waiting, stop):
                report = Ingest(self._table, self.model, self.compressor, progress, stop, batch_size).run(paths, prune)
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

    def search(
        self,
        query: str | Sequence[str],
        top: int = 10,
        *,
        documents: str | Sequence[str] | None = None,
        exact: bool | None = None,
    ) -> Any:
        """The best pages: a list of hits for one query, a list of such lists for several.

        Args:
            query: a text or several.
            top: pages a query.
            documents: only pages of these: names, paths, folders or patterns such as `*.pdf`.
            exact: True scans all vectors in float; None takes the fast path on large indexes (an int8 scan, then
                exact scores of the best hundred).
        """
        texts = [query] if isinstance(query, str) else list(query)
        if top < 1:
            raise AnchorFoldError(f"top must be at least 1, got {top}.")
        found = self.search_vectors(self._encode_queries(texts), top, documents=documents, exact=exact)
        return found[0] if isinstance(query, str) else found

    def _encode_queries(self, texts: list[str]) -> list[Tensor]:
        if self._given is None and "model" not in vars(self) and self.settings.model == DEFAULT_MODEL:
            self._check(self._query_side)
            return self._query_side.encode_queries(texts)
        return self.model.encode_queries(texts)

    @cached_property
    def _query_side(self) -> QuerySide:
        """Enough of the embedded model for searching."""
        return QuerySide()

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
            numbers = [n for n, _ in ranking]
            rows = pages.take(numbers).to_pylist() if numbers else []
            results.append([Hit(r["document"], r["page"], s, r["source"]) for r, (_, s) in zip(rows, ranking, strict=True)])  # fmt: skip  # noqa: E501
        return results

    def flat(self) -> FlatIndex:
        """The flat copy of the newest version."""
        return self._open_scanner().flat

    def _open_scanner(self) -> Scanner:
        with self._opening:
            version = self._table.refresh()
            if self._scanner is None or self._scanner.flat.version != version:
                self._scanner = Scanner(self._table.consistently(lambda: open_flat(self._table)))
            return self._scanner

    def _allowed(self, documents: str | Sequence[str], pages: Any) -> Tensor:
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
        row = self._page_row(source, page, self._table.table.schema.names)
        return encoded_of(row, 0), {name: row[name][0].as_py() for name in ABOUT_A_PAGE}

    def about_at(self, source: str, page: int) -> dict[str, Any]:
        """What is known of a page, without reading its vectors."""
        row = self._page_row(source, page, ABOUT_A_PAGE)
        return {name: row[name][0].as_py() for name in ABOUT_A_PAGE}

    def _page_row(self, source: str, page: int, columns: Sequence[str]) -> Any:
        row = self._table.page(source, page, columns)
        if row is None:
            raise AnchorFoldError(f"{self.path} holds no page {page} of {os.path.basename(source)!r}.")
        return row

    def info(self) -> IndexInfo:
        """Counts, sizes and settings."""
        self._table.refresh()
        return self._table.consistently(lambda: index_info(self._table))

    def export(self, to: str, target: str | Path, **options: Any) -> int:
        """Write all pages elsewhere: `to` is qdrant, parquet or npz. Returns the number of pages written."""
        from anchorfold.index.export import exporter

        self._table.refresh()
        return self._table.consistently(lambda: exporter(to)(self._table, target, **options))


def load_model(name: str, options: dict[str, Any]) -> Retriever:
    """`anchorfold.load`, imported when a model is needed: counting and removing pages go without."""
    from anchorfold.backbones import load

    return load(name, **options)
