"""Requests to the renderer and its events. Page numbers start at 0."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from PIL import Image

from anchorfold.documents.files import Document
from anchorfold.documents.formats import Box, FileIdentity


@dataclass(frozen=True)
class RenderRequest:
    """Pages of a document to render.

    Args:
        document: the document.
        stored: pages that are not needed, by the digest of the document version.
        pages: the pages to render, stored or not; None for all that are not stored.
        limit: maximum number of pages.
        with_image: render the image and its thumbnail; otherwise a blank pixel and no thumbnail.
        with_text: read the text layer.
        words: words whose positions in the text layer are read.
    """

    document: Document
    stored: Mapping[str, Collection[int]] = field(default_factory=dict)
    pages: Sequence[int] | None = None
    limit: int | None = None
    with_image: bool = True
    with_text: bool = False
    words: Sequence[str] = ()


def select_pages(
    total: int, digest: str, pages: Sequence[int] | None, stored: Mapping[str, Collection[int]]
) -> list[int]:
    """Select the pages to render of a document with `total` pages; see `RenderRequest`."""
    if pages is not None:
        return [page for page in pages if page < total]
    done = set(stored.get(digest, ()))
    return [page for page in range(total) if page not in done]


@dataclass(frozen=True)
class RenderEvent:
    """Base class of renderer events."""

    document: Document


@dataclass(frozen=True)
class DocumentOpened(RenderEvent):
    """A document was opened; `identity` is that of the bytes that are rendered, `total` its number of pages."""

    identity: FileIdentity
    total: int


@dataclass(frozen=True)
class PageRendered(RenderEvent):
    """A page image, its WebP thumbnail, its text layer and the positions of the requested words."""

    identity: FileIdentity
    number: int
    total: int
    image: Image.Image
    thumbnail: bytes
    text: str = ""
    boxes: Sequence[Box] = ()


@dataclass(frozen=True)
class PageFailed(RenderEvent):
    """A page cannot be rendered; `problem` is the reason."""

    identity: FileIdentity
    number: int
    total: int
    problem: str


@dataclass(frozen=True)
class DocumentFinished(RenderEvent):
    """The last event of a document. `problem` is the reason if pages are missing.

    `identity` and `total` are None and 0 if the file cannot be opened.
    """

    identity: FileIdentity | None
    problem: str | None = None
    total: int = 0
