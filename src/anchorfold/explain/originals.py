"""The picture of an indexed page: from its original file if that is unchanged, else the stored thumbnail."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Mapping
from typing import Any

from PIL import Image

from anchorfold.documents.pages import open_pages
from anchorfold.errors import AnchorFoldError, UnreadableDocumentError

_one_at_a_time = threading.Lock()  # the PDF library is not made for threads


def find_image(page: Mapping[str, Any], pixels: int) -> tuple[Image.Image, bool]:
    """A page's image, and whether it is the original rather than the thumbnail.

    Args:
        page: a row of the table: source, page, size, modified, thumbnail.
        pixels: of the rendered page, at most.
    """
    if is_unchanged(page):
        try:
            with _one_at_a_time, open_pages(page["source"], pixels) as pages:
                return pages.image(page["page"] - 1), True
        except UnreadableDocumentError:
            pass
    if not page["thumbnail"]:
        name = os.path.basename(page["document"])
        raise AnchorFoldError(f"{name} is gone or has changed, and the index keeps no pictures of it.")
    return Image.open(io.BytesIO(page["thumbnail"])).convert("RGB"), False


def is_unchanged(page: Mapping[str, Any]) -> bool:
    """Whether the original file is the one that was indexed."""
    try:
        found = os.stat(page["source"])
    except OSError:
        return False
    return (found.st_size, found.st_mtime_ns) == (page["size"], page["modified"])
