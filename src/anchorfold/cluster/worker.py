"""A worker: renders pages in a child process and encodes them. An actor of Ray, that needs nothing of it itself."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from anchorfold import __version__
from anchorfold.cluster.shipping import Inbox
from anchorfold.cluster.tasks import PackedPages, PageProblem, Part, PartResult, TaskResult, WorkerStarted
from anchorfold.documents.content import CHANGED
from anchorfold.documents.files import Document
from anchorfold.documents.messages import DocumentProblem, Opened, pages_to_render
from anchorfold.documents.ocr import require_ocr
from anchorfold.documents.render_process import RendererFailedError, RenderProcess
from anchorfold.documents.rendering import DocumentFinished, PageFailed, PageRendered, Request, render_document
from anchorfold.errors import AnchorFoldError, BrokenModelError
from anchorfold.index.encoding import PageBatches
from anchorfold.index.model import IndexModel
from anchorfold.index.reading import TextReader
from anchorfold.index.source import PageEncoded, Recipe, encode_rendered
from anchorfold.index.store.records import PageText


class Worker:
    """Encodes parts of documents. Two threads may call `encode` at once: one renders while the other encodes.

    Args:
        version: the driver's, of this package.
        recipe: how pages are made.
        files: an actor that reads documents which are not found here.
        shared: whether documents may be read from the same paths here.
    """

    def __init__(self, version: str, recipe: Recipe, files: Any, shared: bool) -> None:
        self.version, self.recipe, self.shared = version, recipe, shared
        self.inbox = Inbox(files)
        self.process = RenderProcess()
        self.reader = TextReader(recipe.settings)
        self._rendering, self._encoding = threading.Lock(), threading.Lock()

    def start(self) -> WorkerStarted:
        """Load the model."""
        host, process = socket.gethostname(), os.getpid()
        if self.version != __version__:
            problem = f"{host} has anchorfold {__version__}, the driver {self.version}: install the same on all nodes."
            return WorkerStarted(host, process, problem)
        recipe = self.recipe
        try:
            model = IndexModel(Path(recipe.index), recipe.settings, recipe.model, recipe.load_options)
            self.pixels = model.encoder.page_pixels
            size = recipe.batch_size or model.encoder.default_batch
            self.batches = PageBatches(model.encoder, model.compressor(), size)
            if recipe.settings.ocr:
                require_ocr()
        except (AnchorFoldError, OSError, ValueError) as error:
            return WorkerStarted(host, process, f"the model cannot be loaded on {host}: {error}")
        return WorkerStarted(host, process)

    def encode(self, parts: Sequence[Part], budget: int) -> TaskResult:
        """Encode parts of documents, in order, until there are `budget` pages or more of them.

        Pages that are over the budget are named in the results, parts that were not begun have none.
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
        """End the renderer, and remove documents that were shipped."""
        self.process.close()
        self.inbox.close()

    def _encode(self, results: Sequence[tuple[PartResult, list[PageRendered]]]) -> TaskResult:
        began = time.monotonic()
        owners = [(number, page) for number, (_, pages) in enumerate(results) for page in pages]
        pages: dict[int, list[tuple[int, Any, bytes, PageText | None]]] = {}
        problems: dict[int, list[PageProblem]] = {}
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
                        problems.setdefault(owner, []).append(PageProblem(event.number, event.problem, again=True))
        except BrokenModelError as error:
            return TaskResult(broken=str(error))
        done = [
            replace(
                result, packed=PackedPages.pack(pages.get(i, [])), problems=[*result.problems, *problems.get(i, [])]
            )
            for i, (result, _) in enumerate(results)
        ]
        return TaskResult(done, time.monotonic() - began)

    def _render(self, part: Part, budget: int) -> tuple[PartResult, list[PageRendered]]:
        """Pages of a part as images, and what else is known of it."""
        try:
            document = self._at_hand(part.document)
        except OSError as error:
            return PartResult(None, 0, problem=f"cannot be sent to {socket.gethostname()} ({error})"), []
        wanted, total, identity = part.pages, 0, None
        if wanted is None:
            opened = self._open(document)
            if isinstance(opened, str):
                return PartResult(None, 0, problem=opened), []
            total, identity = opened.pages, opened.identity
            wanted = tuple(pages_to_render(total, identity.digest, None, part.stored))
            if not wanted:
                return PartResult(identity, total), []
        rendered: list[PageRendered] = []
        problems: list[PageProblem] = []
        request = Request(document, wanted=wanted[:budget], texts=self.reader.wanted)
        for event in render_document(self.process, request, self.pixels):
            match event:
                case PageRendered():
                    rendered.append(replace(event, document=part.document))
                case PageFailed():
                    problems.append(PageProblem(event.number, event.problem))
                case DocumentFinished():
                    finished = event
        problem = finished.problem
        if identity is not None and finished.identity not in (None, identity):
            problem = CHANGED
        return PartResult(finished.identity, total, None, problems, problem, wanted[budget:]), rendered

    def _open(self, document: Document) -> Opened | str:
        """How many pages a document has, and its identity; or why that cannot be said. It stays open."""
        while True:
            try:
                (answer,) = self.process.render(str(document.path), [], self.pixels)
            except RendererFailedError as failure:
                if failure.used and not failure.timed_out:
                    continue  # what came before may have spoilt the process
                return str(failure)
            assert isinstance(answer, Opened | DocumentProblem)
            return answer if isinstance(answer, Opened) else answer.reason

    def _at_hand(self, document: Document) -> Document:
        """The document where this machine can read it."""
        if self.shared:
            try:
                status = os.stat(document.path)
                same = (status.st_size, status.st_mtime_ns) == (document.size, document.modified)
                if same and os.access(document.path, os.R_OK):
                    return document
            except OSError:
                pass
        return replace(document, path=self.inbox.fetch(document))
