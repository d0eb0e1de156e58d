"""A page on its way into the store, and out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorfold.errors import AnchorFoldError, MismatchError
from anchorfold.index.coding import Coding
from anchorfold.index.store.catalogue import Document
from anchorfold.index.store.columns import Column, array_column, blob_columns
from anchorfold.index.store.metadata import Metadata
from anchorfold.index.store.provenance import pack, unpack
from anchorfold.index.store.segment import NUMBERS, Segment
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.store.texts import PageText

if TYPE_CHECKING:
    from anchorfold.page import EncodedPage


@dataclass(frozen=True)
class PageRow:
    """A page to be stored. `page` counts from 1; a page that could not be read has no vectors and a `problem`.

    `text` is what it says, None if nobody knows; `metadata` is of its document, and counts when that is new.
    """

    source: str
    document: str
    page: int
    pages: int
    digest: str
    size: int
    modified: int
    live: bool
    encoded: EncodedPage | None
    thumbnail: bytes = b""
    problem: str | None = None
    text: PageText | None = None
    metadata: Metadata = field(default_factory=Metadata)


@dataclass
class DocumentState:
    """What the store knows of a document: its live version, and pages staged for a newer one."""

    document: str
    digest: str = ""
    size: int = -1
    modified: int = -1
    pages: int = 0
    have: set[int] = field(default_factory=set)
    staged: dict[str, set[int]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """All pages of the live version are there."""
        return bool(self.digest) and len(self.have) == self.pages


@dataclass(frozen=True)
class StoredPage:
    """A page in a segment; what it holds is read when it is asked for."""

    version: Document
    segment: Segment
    row: int
    settings: IndexSettings

    @property
    def source(self) -> str:
        """The file, absolute."""
        return self.version.source

    @property
    def document(self) -> str:
        """Its name as given."""
        return self.version.name

    @property
    def page(self) -> int:
        """From 1."""
        return int(self.segment.page[self.row])

    @property
    def full(self) -> int:
        """Vectors before compression."""
        return int(self.segment.full[self.row])

    @property
    def kept(self) -> int:
        """And after; 0 if the page could not be read."""
        return int(self.segment.kept[self.row])

    @property
    def thumbnail(self) -> bytes:
        """A small WebP or JPEG, or nothing."""
        return self.segment.blob("thumbnail", self.row)

    @property
    def problem(self) -> str | None:
        """Why the page could not be read."""
        return self.segment.blob("problem", self.row).decode() or None

    @property
    def vectors(self) -> np.ndarray:
        """`(kept, dim)` in float32."""
        return self.segment.vectors(self.row, self.settings.coding)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """`anchors (m,)`, `groups (N,)`, `weights (N,)`, `grid`."""
        stored = self.segment.blob("provenance", self.row)
        if not stored:
            raise AnchorFoldError(
                f"the index keeps no provenance of {self.document} page {self.page}: it was made with --no-provenance, "
                "which is for search alone."
            )
        try:
            return unpack(stored)
        except (ValueError, KeyError, TypeError) as error:
            raise self.segment.fault(f"the provenance of page {self.page} cannot be read ({error})") from error

    def encoded(self) -> EncodedPage:
        """The page as it was compressed, in float32."""
        import torch

        from anchorfold.page import EncodedPage

        vectors, known = torch.from_numpy(self.vectors), self.provenance
        anchors, groups, weights = (torch.from_numpy(known[name]) for name in ("anchors", "groups", "weights"))
        return EncodedPage(vectors, anchors, groups, weights, known["grid"])

    def details(self) -> dict[str, Any]:
        """All that is known of it besides its vectors."""
        version = self.version
        return {
            "source": self.source, "document": self.document, "page": self.page, "pages": version.pages,
            "digest": version.digest, "size": version.size, "modified": version.modified, "full": self.full,
            "kept": self.kept, "thumbnail": self.thumbnail, "problem": self.problem,
        }  # fmt: skip


def columns_of(rows: Sequence[PageRow], documents: Sequence[int], settings: IndexSettings) -> list[Column]:
    """The columns of a segment with these pages, shortest first; `documents` are the numbers that they belong to."""
    order = sorted(range(len(rows)), key=lambda i: (0 if rows[i].encoded is None else len(rows[i].encoded), i))  # type: ignore[arg-type]
    pages = [rows[i].encoded for i in order]
    numbers = {
        "document": [documents[i] for i in order],
        "page": [rows[i].page for i in order],
        "full": [0 if p is None else p.full for p in pages],
        "kept": [0 if p is None else len(p) for p in pages],
    }
    vectors = [np.zeros((0, settings.dim), np.float32), *(p.vectors.numpy() for p in pages if p is not None)]
    for some in vectors:
        require_dim(some, settings.coding)
    codes, scales = settings.coding.encode(np.concatenate(vectors).astype(np.float32, copy=False))
    blobs = {
        "provenance": [pack(p) if p is not None and settings.provenance else b"" for p in pages],
        "thumbnail": [rows[i].thumbnail for i in order],
        "problem": [(rows[i].problem or "").encode() for i in order],
    }
    return [
        *(array_column(name, np.array(numbers[name], np.uint32)) for name in NUMBERS),
        array_column("codes", codes, long=True),
        array_column("scales", scales, long=True),
        *(column for name, values in blobs.items() for column in blob_columns(name, values)),
    ]


def require_dim(vectors: np.ndarray, coding: Coding) -> None:
    """Refuse vectors of another dimension than the index's."""
    if vectors.shape[1] != coding.dim:
        raise MismatchError(f"the index holds vectors of dimension {coding.dim}, the model gives {vectors.shape[1]}.")
