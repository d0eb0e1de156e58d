"""What an index holds, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anchorfold.index.store.folder import folder_bytes
from anchorfold.index.store.metadata import BUILT_IN
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.store.snapshot import Snapshot
from anchorfold.index.store.texts import PageTexts


@dataclass(frozen=True)
class IndexInfo:
    """What an index holds.

    `bytes` is the whole folder as `du -sb` counts it; of these, `vector_bytes` are codes and scales of the vectors,
    `provenance_bytes` say which patches they come from, `thumbnail_bytes` are pictures, `text_bytes` the pages' text
    with its index, and what is left is the log, counts and checksums, and rows that wait to be merged away.
    `full_vector_bytes` are those of the full index of the same pages as float16. `columns` are what filters may use,
    with their types.

    >>> info = index.info()
    >>> info.pages, info.model, round(info.vectors_times_smaller)
    (2, 'nano', 10)
    """

    documents: int
    pages: int
    vectors: int
    full_vectors: int
    bytes: int
    vector_bytes: int
    provenance_bytes: int
    thumbnail_bytes: int
    text_bytes: int
    full_vector_bytes: int
    unreadable_pages: int
    model: str
    method: str
    settings: dict[str, Any]
    columns: dict[str, str] = field(default_factory=dict)

    @property
    def times_smaller(self) -> float:
        """Bytes of the full index as float16 over all bytes on disk, pictures and text apart.

        A full index has those as well.
        """
        rest = self.bytes - self.thumbnail_bytes - self.text_bytes
        return self.full_vector_bytes / rest if self.vector_bytes else 1.0

    @property
    def vectors_times_smaller(self) -> float:
        """The same of the vectors alone."""
        return self.full_vector_bytes / self.vector_bytes if self.vector_bytes else 1.0


def index_info(snapshot: Snapshot) -> IndexInfo:
    """Count one version of an index."""
    state, s = snapshot.state, snapshot.settings
    live = np.zeros(state.next_document, bool)
    live[[number for number, version in state.documents.items() if version.live]] = True
    seen = np.zeros_like(live)
    pages = vectors = full = unreadable = provenance = thumbnails = 0
    for segment in snapshot.segments().values():
        rows = live[segment.document]
        seen[segment.document[rows]] = True
        kept = segment.kept[rows]
        pages += int((kept > 0).sum())
        unreadable += int((kept == 0).sum())
        vectors += int(kept.sum(dtype=np.int64))
        full += int(segment.full[rows].sum(dtype=np.int64))
        provenance += int(segment.blob_numbers("provenance", "length")[rows].sum(dtype=np.int64))
        thumbnails += int(segment.blob_numbers("thumbnail", "length")[rows].sum(dtype=np.int64))
    layers = s.layers or {"window": s.window, "steps": s.steps}  # version 0.1 kept these two alone
    return IndexInfo(
        documents=int(seen.sum()), pages=pages, vectors=vectors, full_vectors=full, bytes=folder_bytes(snapshot.folder),
        vector_bytes=vectors * s.coding.vector_bytes, provenance_bytes=provenance, thumbnail_bytes=thumbnails,
        text_bytes=PageTexts(snapshot.folder).bytes,
        full_vector_bytes=full * s.dim * 2, unreadable_pages=unreadable, model=s.model, method=s.method,
        settings={
            "fingerprint": s.fingerprint, "dim": s.dim, "bits": s.bits, "window": list(layers["window"]),
            "steps": layers["steps"], **_text_kept(s), **s.options,
        },
        columns={**BUILT_IN, **state.columns},
    )  # fmt: skip


def _text_kept(settings: IndexSettings) -> dict[str, str]:
    return {"text": "with OCR" if settings.ocr else "yes"} if settings.text else {"text": "no"}
