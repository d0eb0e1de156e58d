"""From a source of vectors into an index: streamed, committed in batches, taken up again where it stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.backbones.given_vectors import GivenVectors
from anchorfold.compressors import Compressor
from anchorfold.errors import AnchorFoldError, LockedError, MismatchError, NotAnIndexError
from anchorfold.index import Index
from anchorfold.index.options import require_same
from anchorfold.index.store.records import PageRow
from anchorfold.vectors.given import attention_missing, compress, needs_attention
from anchorfold.vectors.index_writer import IndexWriter, open_writer
from anchorfold.vectors.source import VectorPage, VectorSource

COMMIT_PAGES = 64
COMMIT_SECONDS = 15.0


@dataclass
class CompressReport:
    """What a run did. `pages`, `vectors` and `full_vectors` are those written in this run, `unchanged` the pages that
    were there already, `skipped` those that could not be read (name, reason); seconds are wall time.
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
    to: str | Path,
    compressor: Compressor,
    *,
    model: str | None = None,
    bits: int | None = None,
    progress: Callable[[CompressReport], None] | None = None,
    stop: Callable[[], bool] | None = None,
    wait: float = -1,
    waiting: Callable[[str], None] | None = None,
    **load_options: Any,
) -> CompressReport:
    """Compress all pages of a source into an index; those that it has from this source already are not read again.

    Args:
        source: what `open_source` gives.
        to: the index's folder, made if it does not exist.
        compressor: one that needs no attention.
        model: the model that encoded the pages, so that the index can be searched by text; None if nobody knows.
        bits: a stored number takes: 16 (if None), 8, 4, 2, 1, or 32.
        progress: called after every page.
        stop: asked after every page; True ends the run, and what is done is committed.
        wait: seconds to wait for another writer; negative waits for ever, 0 does not.
        waiting: called with a sentence on whom it waits for.
        **load_options: for `anchorfold.load`.
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
    report = CompressReport()
    try:
        with open_writer(index, source.identity, wait, waiting, stop) as writer:
            _Run(source, compressor, writer, index.settings.dim, report, progress or (lambda _: None)).run(stop)
    except LockedError:
        if stop is None or not stop():
            raise
        report.interrupted = True
    report.seconds = time.monotonic() - began
    return report


class _Run:
    """One run; its writer holds the lock."""

    def __init__(
        self, source: VectorSource, compressor: Compressor, writer: IndexWriter, dim: int, report: CompressReport,
        progress: Callable[[CompressReport], None],
    ) -> None:  # fmt: skip
        self.source, self.compressor, self.writer, self.dim = source, compressor, writer, dim
        self.report, self.show = report, progress
        self._stored = writer.stored_pages()
        self._seen: set[tuple[str, int]] = set()
        self._rows: list[PageRow] = []
        self._committed = time.monotonic()

    def run(self, stop: Callable[[], bool] | None) -> None:
        """All pages that are not stored yet; what was compressed is committed whatever ends it."""
        try:
            for page in self.source.pages(self._wanted):
                self._add(page)
                self.show(self.report)
                if stop is not None and stop():
                    self.report.interrupted = True
                    break
        finally:
            self._commit()
        self.writer.finish()

    def _wanted(self, document: str, page: int) -> bool:
        name = (document, page)
        if name in self._seen:
            raise AnchorFoldError(
                f"{self.source.address} has two pages that are called {document!r} page {page}: name the fields that "
                "tell them apart (--document, --page)."
            )
        self._seen.add(name)
        self.report.unchanged += name in self._stored
        return name not in self._stored

    def _add(self, page: VectorPage) -> None:
        problem = page.problem or shape_problem(page.vectors)
        if problem is None and page.vectors is not None and page.vectors.shape[1] != self.dim:
            problem = f"its vectors have dimension {page.vectors.shape[1]}, the index has {self.dim}"
            if not self.report.pages and not self.report.unchanged:
                raise MismatchError(f"{self.source.address}, {page.document} page {page.page}: {problem}.")
        if problem is not None or page.vectors is None:
            self.report.skipped.append((f"{page.document} page {page.page}", problem or "it has no vectors"))
            return
        encoded = compress(page.vectors.astype(np.float32, copy=False), self.compressor)
        self._rows.append(self.writer.row(page.document, page.page, encoded))
        self.report.pages += 1
        self.report.vectors += len(encoded)
        self.report.full_vectors += encoded.full
        if len(self._rows) >= COMMIT_PAGES or time.monotonic() - self._committed > COMMIT_SECONDS:
            self._commit()

    def _commit(self) -> None:
        rows, self._rows = self._rows, []
        self.writer.append(rows)
        self._committed = time.monotonic()


def shape_problem(vectors: np.ndarray | None) -> str | None:
    """Why an array is no page of vectors; None if it is one."""
    if vectors is None or vectors.size == 0:
        return "it has no vectors"
    if vectors.ndim != 2:
        return f"it has the shape {vectors.shape}, not (vectors, dim)"
    if vectors.dtype.kind not in "fiu":
        return f"it holds {vectors.dtype}, not numbers"
    if not np.isfinite(vectors).all():
        return "it holds NaN or infinite values"
    return None


def _first_dim(source: VectorSource) -> int:
    """The dimension of the first page that can be read."""
    problem = "it holds no pages"
    for page in source.pages(lambda *_: True):
        reason = page.problem or shape_problem(page.vectors)
        if reason is None and page.vectors is not None:
            return int(page.vectors.shape[1])
        problem = f"{page.document} page {page.page}: {reason}"
    raise AnchorFoldError(f"{source.address} has no page with vectors ({problem}).")
