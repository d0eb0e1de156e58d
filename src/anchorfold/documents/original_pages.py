"""Images and texts of indexed pages from their original files, if these are unchanged."""

from __future__ import annotations

import atexit
import io
import os
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import Image

from anchorfold.documents.files import Document, file_status, unescape_path
from anchorfold.documents.formats import CHANGED, Box
from anchorfold.documents.render_events import DocumentFinished, DocumentOpened, PageFailed, PageRendered, RenderRequest
from anchorfold.documents.render_process import RendererFailedError, RenderProcess
from anchorfold.errors import AnchorFoldError, UnreadableDocumentError

PAGE_SECONDS = 30.0  # time limit of a page in an interactive request
LOCK_SECONDS = 10.0  # time to wait for requests of other threads
MAX_FAILURES = 3  # pages of one document that ended the renderer; then its other pages are not tried


def find_image(page: Mapping[str, Any], pixels: int) -> tuple[Image.Image, bool]:
    """Return the image of a page and whether it is the original rather than the stored thumbnail. Thread-safe.

    Args:
        page: stored fields of the page: source, document, page, digest, size, modified, thumbnail.
        pixels: maximum number of pixels of the rendered page.
    """
    problem = "was deleted or changed"
    if is_unchanged(page):
        try:
            return _images.read(page["source"], page["digest"], page["page"] - 1, pixels).image, True
        except UnreadableDocumentError as error:
            problem = f"cannot be rendered ({error})"
    if not page["thumbnail"]:
        name = os.path.basename(page["document"])
        raise AnchorFoldError(f"{name} {problem}, and the index contains no thumbnails.")
    return Image.open(io.BytesIO(page["thumbnail"]), formats=["WEBP", "JPEG"]).convert("RGB"), False


def find_text(page: Mapping[str, Any]) -> str | None:
    """Return the text layer of a page, empty if it has none; None if the original was deleted, changed or is damaged.

    Args:
        page: stored fields of the page: source, page, digest, size, modified.
    """
    layer = _text_layer(page, ())
    return None if layer is None else layer.text


def find_word_boxes(page: Mapping[str, Any], words: tuple[str, ...]) -> list[Box]:
    """Return the positions of words in the text layer of a page; empty where `find_text` is empty or None."""
    layer = _text_layer(page, words) if words else None
    return [] if layer is None else list(layer.boxes)


def is_unchanged(page: Mapping[str, Any]) -> bool:
    """Return whether the original file has the indexed size and time; its digest is checked when it is opened."""
    return file_status(unescape_path(page["source"])) == (page["size"], page["modified"])


def _text_layer(page: Mapping[str, Any], words: tuple[str, ...]) -> PageRendered | None:
    try:
        return _read_text(page["source"], page["digest"], page["page"], words) if is_unchanged(page) else None
    except UnreadableDocumentError:
        return None


@lru_cache(maxsize=256)
def _read_text(source: str, digest: str, page: int, words: tuple[str, ...]) -> PageRendered:
    return _texts.read(source, digest, page - 1, 1, with_image=False, with_text=True, words=words)


class OriginalPages:
    """Reads single pages in one process that stays alive: an untrusted file may end that process, not the caller's.

    A page that ended it is not tried again, since every request would wait for it.
    """

    def __init__(self) -> None:
        self.process = RenderProcess(seconds=PAGE_SECONDS)
        self._lock = threading.Lock()
        self._failures: dict[str, dict[int, str]] = {}  # by digest: pages that ended the process, and the reason

    def read(self, source: str, digest: str, number: int, pixels: int, **options: Any) -> PageRendered:
        """Read page `number` (from 0) of the file version with a digest; `options` are those of `RenderRequest`.

        Raises:
            UnreadableDocumentError: the file changed or cannot be read; the message is the reason.
        """
        request = RenderRequest(Document(source, Path(unescape_path(source)), 0, 0), pages=[number], **options)
        if not self._lock.acquire(timeout=LOCK_SECONDS):
            raise UnreadableDocumentError("the renderer is busy: try again later")
        try:
            failures = self._failures.get(digest, {})
            if number in failures or len(failures) >= MAX_FAILURES:
                raise UnreadableDocumentError(failures.get(number, "other pages of the document ended the renderer"))
            try:
                return self._read(request, digest, pixels)
            except RendererFailedError as failure:
                if not failure.used or failure.timed_out:
                    raise
                return self._read(request, digest, pixels)
        except RendererFailedError as failure:
            self._failures.setdefault(digest, {})[number] = str(failure)
            raise UnreadableDocumentError(str(failure)) from failure
        finally:
            self._lock.release()

    def _read(self, request: RenderRequest, digest: str, pixels: int) -> PageRendered:
        result, problem = None, "no such page"
        for event in self.process.render(request, pixels):
            match event:
                case DocumentOpened() if event.identity.digest != digest:
                    raise UnreadableDocumentError(CHANGED)
                case PageRendered():
                    result = event
                case PageFailed() | DocumentFinished():
                    problem = event.problem or problem
        if result is None:
            raise UnreadableDocumentError(problem)
        return result


_images, _texts = OriginalPages(), OriginalPages()  # two processes: texts do not wait for slow images
for _pages in (_images, _texts):
    atexit.register(_pages.process.kill)  # otherwise it would finish its page first
