"""Messages between the driver and the workers: small and fast to pickle."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from anchorfold.documents.files import Document
from anchorfold.documents.formats import FileIdentity
from anchorfold.page import EncodedPage, PatchGrid
from anchorfold.storage.records import PageText


@dataclass(frozen=True)
class DocumentPart:
    """Pages of a document to encode: `pages` (from 0); if None, all pages that are not `stored`."""

    document: Document
    pages: tuple[int, ...] | None = None
    stored: Mapping[str, Collection[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class FailedPage:
    """Why page `number` (from 0) is missing; `retry` if a later run may succeed."""

    number: int
    problem: str
    retry: bool = False


@dataclass(frozen=True)
class PackedPages:
    """Encoded pages as a few concatenated arrays, which unpickle faster than many small ones.

    `numbers` are page numbers (from 0), `kept` and `full` the vectors per page after and before compression; `vectors
    (sum m, d)`, `anchors (sum m,)`, `groups (sum N,)` and `weights (sum N,)` are concatenated over all pages.
    """

    numbers: Sequence[int]
    kept: Sequence[int]
    full: Sequence[int]
    vectors: np.ndarray
    anchors: np.ndarray
    groups: np.ndarray
    weights: np.ndarray
    grids: Sequence[PatchGrid | None]
    thumbnails: Sequence[bytes]
    texts: Sequence[PageText | None]

    @classmethod
    def pack(cls, pages: Sequence[tuple[int, EncodedPage, bytes, PageText | None]]) -> PackedPages | None:
        """Pack pages given as (number, page, thumbnail, text); return None if there are none."""
        if not pages:
            return None
        encoded = [page for _, page, _, _ in pages]
        vectors, anchors, groups, weights = (
            np.concatenate([getattr(page, name).numpy() for page in encoded])
            for name in ("vectors", "anchors", "groups", "weights")
        )
        return cls(
            [number for number, _, _, _ in pages], [len(page) for page in encoded], [page.full for page in encoded],
            vectors, anchors, groups, weights, [page.grid for page in encoded],
            [thumbnail for _, _, thumbnail, _ in pages], [text for _, _, _, text in pages],
        )  # fmt: skip

    def unpack(self) -> list[tuple[int, EncodedPage, bytes, PageText | None]]:
        """Return copies of the pages: arrays from Ray are read-only and keep the whole object in memory."""
        vectors, anchors = (torch.from_numpy(a.copy()).split(list(self.kept)) for a in (self.vectors, self.anchors))
        groups, weights = (torch.from_numpy(a.copy()).split(list(self.full)) for a in (self.groups, self.weights))
        pages = map(EncodedPage, vectors, anchors, groups, weights, self.grids)
        return list(zip(self.numbers, pages, self.thumbnails, self.texts, strict=True))


@dataclass(frozen=True)
class PartResult:
    """Result of a part.

    `identity` and `total` pages of the document (None and 0 if it could not be opened), the `problem` that ended it,
    and `remaining`, the requested pages beyond the page budget of the task.
    """

    identity: FileIdentity | None
    total: int
    packed: PackedPages | None = None
    problems: Sequence[FailedPage] = ()
    problem: str | None = None
    remaining: Sequence[int] = ()


@dataclass(frozen=True)
class TaskResult:
    """Result of a task: results of the parts that were started, in order, and the encoding time in seconds.

    `broken` is the reason why the worker cannot encode any page.
    """

    results: Sequence[PartResult] = ()
    seconds: float = 0.0
    broken: str | None = None


@dataclass(frozen=True)
class WorkerStarted:
    """Host and process of a worker that loaded its model, or the `problem` of loading it."""

    host: str = ""
    process: int = 0
    problem: str | None = None
