"""Documents as page images: file discovery, file formats, and rendering in a separate process with limits."""

from anchorfold.documents.files import Document
from anchorfold.documents.formats import DocumentReader, FileIdentity
from anchorfold.documents.listing import DocumentListing, list_documents
from anchorfold.documents.render_events import DocumentFinished, PageFailed, PageRendered, RenderEvent, RenderRequest
from anchorfold.documents.renderer import Renderer

__all__ = [
    "Document",
    "DocumentFinished",
    "DocumentListing",
    "DocumentReader",
    "FileIdentity",
    "PageFailed",
    "PageRendered",
    "RenderEvent",
    "RenderRequest",
    "Renderer",
    "list_documents",
]
