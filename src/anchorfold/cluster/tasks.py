"""What the driver asks of a worker, and what comes back: small, and quick to pickle."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from anchorfold.documents.content import FileIdentity
from anchorfold.documents.files import Document
from anchorfold.index.store.records import PageText
from anchorfold.page import EncodedPage, PatchGrid


@dataclass(frozen=True)
class Part:
    """Some pages of a document: those in `pages` (from 0), or all that are not `stored`, if that is not known yet."""

    document: Document
    pages: tuple[int, ...] | None = None
    stored: Mapping[str, Collection[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class PageProblem:
    """Why page `number` (from 0) is missing; `again` if another run may try it."""

    number: int
    problem: str
    again: bool = False


@dataclass(frozen=True)
class PackedPages:
    """Encoded pages in few arrays: thousands of small ones would keep the driver busy with unpickling.

    `numbers` are the pages (from 0), `kept` and `full` their vectors after and before compression; `vectors (sum m, d)`
    and `anchors (sum m,)`, `groups (sum N,)` and `weights (sum N,)` are those of all pages below each other.
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
        """From (number, page, thumbnail, text) each; None of no pages."""
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
        """The pages again, in memory of their own: what Ray gives is read-only, and would be held as a whole."""
        vectors, anchors = (torch.from_numpy(a.copy()).split(list(self.kept)) for a in (self.vectors, self.anchors))
        groups, weights = (torch.from_numpy(a.copy()).split(list(self.full)) for a in (self.groups, self.weights))
        pages = map(EncodedPage, vectors, anchors, groups, weights, self.grids)
        return list(zip(self.numbers, pages, self.thumbnails, self.texts, strict=True))


@dataclass(frozen=True)
class PartResult:
    """What became of a part.

    `identity` and `total` pages of the document (None and 0 if it could not be opened), `problem` why it ended early,
    `rest` the pages that were wanted and not done, because the task was long enough.
    """

    identity: FileIdentity | None
    total: int
    packed: PackedPages | None = None
    problems: Sequence[PageProblem] = ()
    problem: str | None = None
    rest: Sequence[int] = ()


@dataclass(frozen=True)
class TaskResult:
    """What became of a task: the results of its first parts (the others were not begun), and the seconds of encoding.

    `broken` says why the worker cannot encode at all.
    """

    results: Sequence[PartResult] = ()
    seconds: float = 0.0
    broken: str | None = None


@dataclass(frozen=True)
class WorkerStarted:
    """A worker has its model: where it runs; or `problem` says why it has none."""

    host: str = ""
    process: int = 0
    problem: str | None = None
