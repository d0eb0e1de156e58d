"""Worker that renders pages in a child process and encodes them. A Ray actor that does not use Ray directly."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from anchorfold import __version__
from anchorfold.cluster.file_transfer import DocumentCache
from anchorfold.cluster.worker_messages import (
    DocumentPart,
    FailedPage,
    PackedPages,
    PartResult,
    TaskResult,
    WorkerStarted,
)
from anchorfold.documents.files import Document, file_status
from anchorfold.documents.ocr import require_ocr
from anchorfold.documents.render_events import (
    DocumentFinished,
    PageFailed,
    PageRendered,
    RenderRequest,
    select_pages,
)
from anchorfold.documents.render_process import RenderProcess
from anchorfold.documents.renderer import render_document
from anchorfold.errors import AnchorFoldError, BrokenModelError
from anchorfold.indexes.index_model import IndexModel
from anchorfold.ingestion.encoded_pages import EncodingJob, PageBatches, PageEncoded, encode_rendered
from anchorfold.ingestion.text_extraction import PageTextReader
from anchorfold.storage.records import PageText


class Worker:
    """Encodes parts of documents. Two threads may call `encode` concurrently: one renders, the other encodes.

    Args:
        version: package version of the driver.
        job: encoding settings of the index.
        files: the `FileReader` actor, for documents that this node cannot read.
        shared: whether documents may be read from the same paths on this node.
    """

    def __init__(self, version: str, job: EncodingJob, files: Any, shared: bool) -> None:
        self.version, self.job, self.shared = version, job, shared
        self.document_cache = DocumentCache(files)
        self.process = RenderProcess()
        self.reader = PageTextReader(job.settings)
        self._rendering, self._encoding = threading.Lock(), threading.Lock()

    def start(self) -> WorkerStarted:
        """Load the model; return the host and process, or the problem."""
        host, process = socket.gethostname(), os.getpid()
        if self.version != __version__:
            problem = f"{host} has anchorfold {__version__}, the driver {self.version}: install the same on all nodes."
            return WorkerStarted(host, process, problem)
        job = self.job
        try:
            model = IndexModel(job.index, job.settings, job.model, job.load_options)
            self.pixels = model.encoder.page_pixels
            size = job.batch_size or model.encoder.default_batch_size
            self.batches = PageBatches(model.encoder, model.compressor(), size)
            if job.settings.ocr:
                require_ocr()
        except (AnchorFoldError, OSError) as error:
            return WorkerStarted(host, process, f"the model cannot be loaded on {host}: {error}")
        return WorkerStarted(host, process)

    def encode(self, parts: Sequence[DocumentPart], budget: int) -> TaskResult:
        """Encode parts of documents in order until the budget of `budget` pages is used up.

        Results list the pages beyond the budget; parts that were not started have no result.
        """
        results: list[tuple[PartResult, list[PageRendered]]] = []
        with self._rendering:
            left = budget
            for part in parts:
                if left <= 0:
                    break
                result, rendered = self._render(part, left)
                results.append((result, rendered))
                left -= max(1, len(rendered) + len(result.problems))
        with self._encoding:
            return self._encode(results)

    def close(self) -> None:
        """Stop the renderer and remove transferred documents."""
        self.process.close()
        self.document_cache.close()

    def _encode(self, results: Sequence[tuple[PartResult, list[PageRendered]]]) -> TaskResult:
        began = time.monotonic()
        owners = [(number, page) for number, (_, pages) in enumerate(results) for page in pages]
        pages: dict[int, list[tuple[int, Any, bytes, PageText | None]]] = {}
        problems: dict[int, list[FailedPage]] = {}
        size = self.batches.batch_size
        try:
            for first in range(0, len(owners), size):
                batch = owners[first : first + size]
                for (owner, _), event in zip(
                    batch, encode_rendered(self.batches, [page for _, page in batch], self.reader), strict=True
                ):
                    if isinstance(event, PageEncoded):
                        pages.setdefault(owner, []).append((event.number, event.page, event.thumbnail, event.text))
                    else:
                        problems.setdefault(owner, []).append(FailedPage(event.number, event.problem, retry=True))
        except BrokenModelError as error:
            return TaskResult(broken=str(error))
        done = [
            replace(
                result, packed=PackedPages.pack(pages.get(i, [])), problems=[*result.problems, *problems.get(i, [])]
            )
            for i, (result, _) in enumerate(results)
        ]
        return TaskResult(done, time.monotonic() - began)

    def _render(self, part: DocumentPart, budget: int) -> tuple[PartResult, list[PageRendered]]:
        """Render the pages of a part; return its result so far and the page images."""
        try:
            document = self._local_copy(part.document)
        except OSError as error:
            return PartResult(None, 0, problem=f"cannot be sent to {socket.gethostname()} ({error})"), []
        rendered: list[PageRendered] = []
        problems: list[FailedPage] = []
        request = RenderRequest(document, part.stored, part.pages, limit=budget, with_text=self.reader.enabled)
        for event in render_document(self.process, request, self.pixels):
            match event:
                case PageRendered():
                    rendered.append(replace(event, document=part.document))
                case PageFailed():
                    problems.append(FailedPage(event.number, event.problem))
                case DocumentFinished():
                    finished = event
        identity, total, remaining = finished.identity, finished.total, list[int]()
        if identity is not None:
            remaining = select_pages(total, identity.digest, part.pages, part.stored)[budget:]
        return PartResult(identity, total, None, problems, finished.problem, remaining), rendered

    def _local_copy(self, document: Document) -> Document:
        """Return the document with a path that this node can read."""
        unchanged = file_status(document.path) == (document.size, document.modified)
        if self.shared and unchanged and os.access(document.path, os.R_OK):
            return document
        return replace(document, path=self.document_cache.fetch(document))
