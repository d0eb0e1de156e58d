"""From files to page images: what can be read, in which order, and how it is rendered ahead of the encoder."""

from anchorfold.documents.content import FileIdentity
from anchorfold.documents.files import Document, find_documents
from anchorfold.documents.kinds import Pages
from anchorfold.documents.rendering import DocumentFinished, PageFailed, PageRendered, PagesCounted, Renderer, Request

__all__ = [
    "Document",
    "DocumentFinished",
    "FileIdentity",
    "PageFailed",
    "PageRendered",
    "Pages",
    "PagesCounted",
    "Renderer",
    "Request",
    "find_documents",
]
