"""A stored page as every store returns it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.provenance import unpack
from anchorfold.storage.records import DocumentVersion
from anchorfold.storage.schema import public_page_id

if TYPE_CHECKING:
    from anchorfold.page import EncodedPage


class PageContent(ABC):
    """What an index stores of a page; valid only while the store calls a function with it.

    Args:
        settings: settings of the index.
        version: the version of the document that contains the page.
        page: page number, from 1.
        full: number of vectors before compression.
        kept: number of stored vectors; 0 if the page could not be read.
    """

    def __init__(self, settings: IndexSettings, version: DocumentVersion, page: int, full: int, kept: int) -> None:
        self.settings, self.version, self.page, self.full, self.kept = settings, version, page, full, kept

    @property
    @abstractmethod
    def vectors(self) -> np.ndarray:
        """`(kept, dim)` float32."""

    @property
    @abstractmethod
    def thumbnail(self) -> bytes:
        """A small WebP or JPEG, or nothing."""

    @property
    @abstractmethod
    def problem(self) -> str | None:
        """Why the page could not be read."""

    @property
    @abstractmethod
    def text(self) -> str | None:
        """The text of the page; None if it is not stored."""

    @abstractmethod
    def packed_provenance(self) -> bytes:
        """Return the result of `provenance.pack`; nothing if the index stores none."""

    @abstractmethod
    def fault(self, problem: str) -> AnchorFoldError:
        """Return the error for stored data that differs from what was written."""

    @property
    def source(self) -> str:
        """Absolute path of the document."""
        return self.version.source

    @property
    def document(self) -> str:
        """Name of the document as given."""
        return self.version.name

    @property
    def public_id(self) -> str:
        """Identifier of the page for clients of a server: `Hit.page_id`."""
        return public_page_id(self.version.document_id, self.page)

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the document: read from the file, and given by the user."""
        return {**self.version.file_metadata, **self.version.metadata}

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """`anchors (m,)`, `groups (N,)`, `weights (N,)`, `grid`."""
        stored = self.packed_provenance()
        if not stored:
            raise AnchorFoldError(
                f"{self.document} page {self.page} has no stored provenance: the index was created with "
                "--no-provenance, which supports search only."
            )
        try:
            return unpack(stored)
        except (ValueError, KeyError, TypeError) as error:
            raise self.fault(f"the provenance of page {self.page} cannot be read ({error})") from error

    def encoded(self) -> EncodedPage:
        """Return the page as it was compressed, in float32."""
        import torch

        from anchorfold.page import EncodedPage

        vectors, known = torch.from_numpy(self.vectors), self.provenance
        anchors, groups, weights = (torch.from_numpy(known[name]) for name in ("anchors", "groups", "weights"))
        return EncodedPage(vectors, anchors, groups, weights, known["grid"])

    def details(self) -> dict[str, Any]:
        """Return everything that is stored of the page except its vectors and text."""
        version = self.version
        return {
            "source": self.source, "document": self.document, "page": self.page, "pages": version.pages,
            "digest": version.digest, "size": version.size, "modified": version.modified, "full": self.full,
            "kept": self.kept, "thumbnail": self.thumbnail, "problem": self.problem,
        }  # fmt: skip
