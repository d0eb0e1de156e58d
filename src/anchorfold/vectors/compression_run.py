"""Compression of a vector source into an index: streamed, committed in batches, resumable."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anchorfold.backbones.given_vectors import GivenVectors
from anchorfold.compressors import Compressor
from anchorfold.errors import AnchorFoldError, LockedError, MismatchError, NotAnIndexError
from anchorfold.indexes.creation import require_same
from anchorfold.indexes.index import Index
from anchorfold.indexes.locations import Location
from anchorfold.storage.records import PageRow
from anchorfold.vectors.compression import attention_missing, compress_hidden_states, needs_attention
from anchorfold.vectors.vector_source import VectorPage, VectorSource

COMMIT_PAGES = 64
COMMIT_SECONDS = 15.0


@dataclass
class CompressionReport:
    """Result of a run. `pages`, `vectors` and `full_vectors` count what was written in this run.

    `unchanged` pages were in the index before, `skipped` ones (name, reason) cannot be read; seconds are wall time.
    """

    pages: int = 0
    unchanged: int = 0
    vectors: int = 0
    full_vectors: int = 0
    skipped: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    interrupted: bool = False


def compress_source(
    source: VectorSource,
    to: Location,
    compressor: Compressor,
    *,
    model: str | None = None,
    bits: int | None = None,
    progress: Callable[[CompressionReport], None] | None = None,
    stop: Callable[[], bool] | None = None,
    wait: float = -1,
    waiting: Callable[[str], None] | None = None,
    **load_options: Any,
) -> CompressionReport:
    """Compress all pages of a source into an index; pages that are already stored are not read.

    Args:
        source: result of `open_source`.
        to: folder or URL of the index, created if it does not exist.
        compressor: a compressor that needs no attention.
        model: the model that encoded the pages, for text queries; None if unknown.
        bits: bits per vector component: 16 (if None), 8, 4, 2, 1, or 32.
        progress: called after every page.
        stop: called after every page; True ends the run after a commit.
        wait: seconds to wait for another writer; negative for no limit, 0 to fail immediately.
        waiting: called with a message while waiting.
        **load_options: options of `anchorfold.load`.
    """
    if needs_attention(compressor):
        raise AnchorFoldError(attention_missing(compressor.name))
    began = time.monotonic()
    try:
        index = Index.open(to, model, **load_options)
        require_same(index.settings, compressor, bits)
    except NotAnIndexError:
        encoder = model or GivenVectors(_first_dim(source))
        index = Index.create(to, encoder, compressor, bits=bits, thumbnails=False, **load_options)
    report = CompressionReport()
    try:
        with index.store.writing(wait, waiting, stop):
            _CompressionRun(source, compressor, index, report, progress or (lambda _: None)).run(stop)
    except LockedError:
        if stop is None or not stop():
            raise
        report.interrupted = True
    report.seconds = time.monotonic() - began
    return report


class _CompressionRun:
    """One run. The caller holds the writer lock; pages of other sources in the index are not changed."""

    def __init__(
        self, source: VectorSource, compressor: Compressor, index: Index, report: CompressionReport,
        progress: Callable[[CompressionReport], None],
    ) -> None:  # fmt: skip
        self.source, self.compressor, self.store, self.dim = source, compressor, index.store, index.settings.dim
        self.report, self.progress = report, progress
        self._prefix = f"vectors:{source.identity}#"
        self._stored = self._stored_pages()
        self._seen: set[tuple[str, int]] = set()
        self._rows: list[PageRow] = []
        self._committed = time.monotonic()

    def run(self, stop: Callable[[], bool] | None) -> None:
        """Compress all missing pages; compressed pages are committed also after an error."""
        try:
            for page in self.source.pages(self._is_needed):
                self._add(page)
                self.progress(self.report)
                if stop is not None and stop():
                    self.report.interrupted = True
                    break
        finally:
            self._commit()
        self.store.finish()

    def _stored_pages(self) -> set[tuple[str, int]]:
        names = {s: d.document for s, d in self.store.documents().items() if s.startswith(self._prefix)}
        stored = self.store.stored_pages(list(names))
        return {(names[s], page) for s, versions in stored.items() for pages in versions.values() for page in pages}

    def _is_needed(self, document: str, page: int) -> bool:
        name = (document, page)
        if name in self._seen:
            raise AnchorFoldError(
                f"{self.source.location} has two pages named {document!r} page {page}: name the fields that identify a "
                "page (--document-field, --page-field)."
            )
        self._seen.add(name)
        self.report.unchanged += name in self._stored
        return name not in self._stored

    def _add(self, page: VectorPage) -> None:
        problem = page.problem or vectors_problem(page.vectors)
        if problem is None and page.vectors is not None and page.vectors.shape[1] != self.dim:
            problem = f"vectors of dimension {page.vectors.shape[1]}, the index has {self.dim}"
            if not self.report.pages and not self.report.unchanged:
                raise MismatchError(f"{self.source.location}, {page.document} page {page.page}: {problem}.")
        if problem is not None or page.vectors is None:
            self.report.skipped.append((f"{page.document} page {page.page}", problem or "no vectors"))
            return
        try:
            encoded = compress_hidden_states(page.vectors.astype(np.float32, copy=False), self.compressor)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
                raise
            problem = f"not enough memory to compress its {len(page.vectors):,} vectors"
            self.report.skipped.append((f"{page.document} page {page.page}", problem))
            return
        source = self._prefix + page.document
        digest = hashlib.blake2b(source.encode(), digest_size=16).hexdigest()
        self._rows.append(
            PageRow(
                source=source,
                document=page.document,
                page=page.page,
                pages=0,  # unknown, as are size and time of the original file
                digest=digest,
                size=0,
                modified=0,
                live=True,
                encoded=encoded,
            )
        )
        self.report.pages += 1
        self.report.vectors += len(encoded)
        self.report.full_vectors += encoded.full
        if len(self._rows) >= COMMIT_PAGES or time.monotonic() - self._committed > COMMIT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        rows, self._rows = self._rows, []
        self.store.append(rows)
        self._committed = time.monotonic()


def vectors_problem(vectors: np.ndarray | None) -> str | None:
    """Return why an array is not a page of vectors; None if it is valid."""
    if vectors is None or vectors.size == 0:
        return "no vectors"
    if vectors.ndim != 2:
        return f"shape {vectors.shape}, expected (vectors, dim)"
    if vectors.dtype.kind not in "fiu":
        return f"type {vectors.dtype}, expected numbers"
    if not np.isfinite(vectors).all():
        return "NaN or infinite values"
    return None


def _first_dim(source: VectorSource) -> int:
    """Return the dimension of the first readable page."""
    problem = "no pages"
    for page in source.pages(lambda *_: True):
        reason = page.problem or vectors_problem(page.vectors)
        if reason is None and page.vectors is not None:
            return int(page.vectors.shape[1])
        problem = f"{page.document} page {page.page}: {reason}"
    raise AnchorFoldError(f"{source.location} has no page with vectors ({problem}).")
