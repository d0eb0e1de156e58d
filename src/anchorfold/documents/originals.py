"""The picture of an indexed page: from its original file if that is unchanged, else the stored thumbnail."""

from __future__ import annotations

import atexit
import io
import os
import threading
from collections.abc import Mapping
from typing import Any

from PIL import Image

from anchorfold.documents.content import CHANGED
from anchorfold.documents.files import system_path
from anchorfold.documents.messages import DocumentProblem, Opened, PageProblem, Picture
from anchorfold.documents.render_process import RendererFailedError, RenderProcess
from anchorfold.errors import AnchorFoldError, UnreadableDocumentError

PAGE_SECONDS = 30.0  # somebody waits for the page
TURN_SECONDS = 10.0  # to wait for others' pages
MAX_FAILURES = 3  # pages of one document that ended the renderer: then the others are not tried


def find_image(page: Mapping[str, Any], pixels: int) -> tuple[Image.Image, bool]:
    """A page's image, and whether it is the original rather than the thumbnail. For any thread.

    Args:
        page: a row of the table: source, document, page, digest, size, modified, thumbnail.
        pixels: of the rendered page, at most.
    """
    problem = "is gone or has changed"
    if is_unchanged(page):
        try:
            return _originals.render(system_path(page["source"]), page["digest"], page["page"] - 1, pixels), True
        except UnreadableDocumentError as reason:
            problem = f"cannot be rendered ({reason})"
    if not page["thumbnail"]:
        name = os.path.basename(page["document"])
        raise AnchorFoldError(f"{name} {problem}, and the index keeps no pictures of it.")
    return Image.open(io.BytesIO(page["thumbnail"]), formats=["WEBP", "JPEG"]).convert("RGB"), False


def is_unchanged(page: Mapping[str, Any]) -> bool:
    """Whether the original file looks like the one that was indexed; rendering it makes sure."""
    try:
        status = os.stat(system_path(page["source"]))
    except OSError:
        return False
    return (status.st_size, status.st_mtime_ns) == (page["size"], page["modified"])


class Originals:
    """Renders single pages in one process that stays alive: a hostile file can end that, not the one that asks.

    A page that did so is not tried again, lest it keeps everybody waiting.
    """

    def __init__(self) -> None:
        self.process = RenderProcess(seconds=PAGE_SECONDS)
        self._turn = threading.Lock()
        self._failed: dict[str, dict[int, str]] = {}  # by digest: pages that ended the process, and how

    def render(self, path: str, digest: str, number: int, pixels: int) -> Image.Image:
        """Page `number`, from 0, of the file with this digest; UnreadableDocumentError says why not."""
        if not self._turn.acquire(timeout=TURN_SECONDS):
            raise UnreadableDocumentError("the renderer is busy: try again in a moment")
        try:
            failed = self._failed.get(digest, {})
            if number in failed or len(failed) >= MAX_FAILURES:
                raise UnreadableDocumentError(failed.get(number, "other pages of it ended the renderer"))
            try:
                return self._render(path, digest, number, pixels)
            except RendererFailedError as failure:
                if not failure.used or failure.timed_out:
                    raise
                return self._render(path, digest, number, pixels)
        except RendererFailedError as failure:
            self._failed.setdefault(digest, {})[number] = str(failure)
            raise UnreadableDocumentError(str(failure)) from failure
        finally:
            self._turn.release()

    def _render(self, path: str, digest: str, number: int, pixels: int) -> Image.Image:
        image, problem = None, "no such page"
        for answer in self.process.render(path, [number], pixels):
            match answer:
                case Opened() if answer.identity.digest != digest:
                    raise UnreadableDocumentError(CHANGED)
                case Picture():
                    image = answer.image
                case PageProblem() | DocumentProblem():
                    problem = answer.reason
        if image is None:
            raise UnreadableDocumentError(problem)
        return image


_originals = Originals()
atexit.register(_originals.process.kill)  # it would end by itself, but a page later
