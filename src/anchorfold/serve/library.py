"""What the server knows of an index: pages by opaque ids, names without the machine's paths, pictures, evidence."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from anchorfold.backbones.encoder import require_comparable
from anchorfold.compressors import COMPRESSORS, Compressor, FullIndex, wanted_signals
from anchorfold.documents.files import matches
from anchorfold.errors import AnchorFoldError
from anchorfold.explain.evidence import Evidence, evidence
from anchorfold.explain.originals import find_image, is_unchanged
from anchorfold.index import Hit, Index
from anchorfold.page import EncodedPage, PatchGrid
from anchorfold.scoring import maxsim, score_retention

PICTURES = 64  # rendered pages kept in memory


@dataclass(frozen=True)
class Place:
    """A page of the index: where it is stored, and the name that the world may see."""

    source: str
    page: int
    name: str


def public_model(name: str) -> str:
    """A hub name as it is; of a folder only its last part."""
    return os.path.basename(os.path.normpath(name)) if os.path.isabs(name) or name.startswith(".") else name


def page_id(source: str, page: int) -> str:
    """Says nothing of the path, and stays the same while the document does."""
    return hashlib.blake2b(f"{source}\0{page}".encode(), digest_size=12).hexdigest()


def public_names(documents: dict[str, str]) -> dict[str, str]:
    """Names by source: as given if they are relative; else from the folder that all share, never the whole path."""
    outside = [d for d in documents.values() if os.path.isabs(d) or d.startswith("..")]
    base = ""
    if outside:
        parts = [os.path.dirname(d).split(os.sep) for d in outside]
        same = 0
        while all(len(p) > same for p in parts) and len({p[same] for p in parts}) == 1:
            same += 1
        base = os.sep.join(parts[0][:same])
    names = {}
    for source, document in documents.items():
        if document in outside:
            names[source] = os.path.relpath(document, base or os.sep).lstrip("./")
        else:
            names[source] = document
    return names


class Library:
    """An index behind the server. Safe for threads."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._lock = threading.Lock()
        self._version = -1
        self._places: dict[str, Place] = {}
        self._names: dict[str, str] = {}
        self._pictures: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()

    def warm_up(self) -> None:
        """Load the model and open the pages before the first visitor waits for them."""
        _ = self.index.model  # evidence wants the whole of it, not the query side alone
        self._refresh()

    def _refresh(self) -> None:
        with self._lock:
            live = self.index.live()
            if live.version == self._version:
                return
            pages = [(document.source, document.name, page) for document, page in live.pages()]
            self._names = public_names({source: name for source, name, _ in pages})
            self._places = {page_id(s, p): Place(s, p, self._names[s]) for s, _, p in pages}
            self._version = live.version

    def search(self, query: str, top: int, document: str | None) -> list[tuple[str, Place, float]]:
        """The best pages as (id, place, score); `document` is a public name or a pattern of them."""
        self._refresh()
        only: Sequence[str] | None = None
        if document:
            only = [s for s, n in self._names.items() if matches(document, n, n)]
            if not only:
                return []
        hits: list[Hit] = self.index.search(query, top, documents=only)
        found = []
        for hit in hits:
            name = self._names.get(hit.source, os.path.basename(hit.document))
            found.append((page_id(hit.source, hit.page), Place(hit.source, hit.page, name), hit.score))
        return found

    def place(self, identity: str) -> Place:
        """A page by its id; KeyError if there is none."""
        self._refresh()
        return self._places[identity]

    def about(self, place: Place) -> tuple[EncodedPage, dict[str, Any]]:
        """A page as stored, and its row."""
        return self.index.page_at(place.source, place.page)

    def picture(self, place: Place, longer: int) -> bytes:
        """A JPEG of the page, at most `longer` pixels on its longer side."""
        about = self.index.details_at(place.source, place.page)
        key = (f"{place.source}:{about['modified']}", place.page, longer)
        with self._lock:
            if key in self._pictures:
                self._pictures.move_to_end(key)
                return self._pictures[key]
        image, _ = find_image(about, longer * longer)
        image.thumbnail((longer, longer), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=85)
        with self._lock:
            self._pictures[key] = buffer.getvalue()
            while len(self._pictures) > PICTURES:
                self._pictures.popitem(last=False)
        return buffer.getvalue()

    def thumbnail(self, place: Place) -> bytes:
        """The stored thumbnail, or a small picture if the index keeps none."""
        about = self.index.details_at(place.source, place.page)
        return about["thumbnail"] or self.picture(place, 360)

    def explain(self, place: Place, query: str) -> dict[str, Any]:
        """Which patches answer which word, as JSON."""
        encoded, about = self.about(place)
        asked = self.index.model.explain_query(query)
        found = evidence(asked.vectors, asked.labels, asked.words, encoded)
        return {**as_json(found, encoded), "original": is_unchanged(about)}

    def compare(self, place: Place, query: str, methods: Sequence[tuple[str, float]]) -> list[dict[str, Any]]:
        """The same page and query under several compressors; needs the original document."""
        about = self.index.details_at(place.source, place.page)
        image, original = find_image(about, self.index.model.page_pixels)
        if not original:
            raise AnchorFoldError("the original document is not at hand: methods cannot be compared on this page.")
        model = require_comparable(self.index.model)
        made = [_compressor(name, ratio) for name, ratio in methods]
        signals = wanted_signals(made, model.settings)
        (state,) = model.page_states([image], signals)
        full = model.compress(state, FullIndex())
        asked = model.explain_query(query)
        answers = []
        for (name, ratio), each in zip(methods, made, strict=True):
            page = model.compress(state, each)
            found = evidence(asked.vectors, asked.labels, asked.words, page)
            whole = len(asked.vectors) and float(maxsim([asked.vectors], [full]))
            kept = round(score_retention(asked.vectors, full, page), 2) if whole else None
            answers.append({"method": name, "ratio": ratio, "kept": kept, **as_json(found, page)})
        return answers


def _compressor(name: str, ratio: float) -> Compressor:
    """A compressor under a ratio, which the full index does without."""
    return FullIndex() if name == FullIndex.name else COMPRESSORS[name].with_budget(ratio)


def as_json(found: Evidence, page: EncodedPage) -> dict[str, Any]:
    """Evidence with its patches: only those that are lit, as [patch, value]."""
    words = [
        {
            "word": word,
            "score": round(float(score), 4),
            "patches": [[int(p), round(float(values[p]), 5)] for p in values.nonzero().flatten()],
        }
        for word, score, values in zip(found.words, found.scores, found.maps, strict=True)
    ]
    return {
        "score": round(found.score, 4),
        "vectors": len(page),
        "full_vectors": page.full,
        "most": round(float(found.whole.max()), 5) if found.maps.numel() else 0.0,
        "words": words,
        "tiles": tiles_of(page.grid),
    }


def tiles_of(grid: PatchGrid | None) -> list[list[float]]:
    """Rows, columns, left, top, right, bottom of each tile; patches are numbered through them in order."""
    if grid is None:
        return []
    return [[t.rows, t.columns, t.left, t.top, t.right, t.bottom] for t in grid.tiles]
