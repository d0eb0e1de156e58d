"""What the server knows of an index: pages by opaque ids, names without the machine's paths, pictures, evidence."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from anchorfold.backbones.encoder import require_comparable
from anchorfold.compressors import Compressor, FullIndex, wanted_signals
from anchorfold.documents.files import matches
from anchorfold.documents.page_text import Box
from anchorfold.errors import AnchorFoldError
from anchorfold.explain.evidence import Evidence, evidence
from anchorfold.explain.originals import find_image, is_unchanged
from anchorfold.explain.page_text import find_words
from anchorfold.index import Hit, Index
from anchorfold.index.filters.columns import Facet, Where
from anchorfold.index.hybrid import Mode
from anchorfold.page import EncodedPage, PatchGrid
from anchorfold.scoring import maxsim, score_retention

PICTURES = 64  # rendered pages that stay in memory


@dataclass(frozen=True)
class PageReference:
    """A page of the index: where it is stored, and the name of its document that the world may see."""

    source: str
    number: int
    document: str


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
        self._pages: dict[str, PageReference] = {}
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
            self._pages = {page_id(s, p): PageReference(s, p, self._names[s]) for s, _, p in pages}
            self._version = live.version

    def search(
        self,
        query: str,
        top: int,
        document: str | None = None,
        where: str | None = None,
        mode: Mode | None = None,
    ) -> list[tuple[str, PageReference, Hit]]:
        """The best pages as (id, page, hit).

        `document` is a public name or a pattern, and a blank one finds nothing; `where` a filter on public names.
        """
        self._refresh()
        sources: Sequence[str] | None = None
        if document is not None:
            names = self._names if document.strip() else {}
            sources = [source for source, name in names.items() if matches(document, name, name)]
            if not sources:
                return []
        scored = []
        where_public = Where(where, self._names)
        for hit in self.index.search(query, top, mode=mode, documents=sources, where=where_public):
            name = self._names.get(hit.source, os.path.basename(hit.document))
            scored.append((page_id(hit.source, hit.page), PageReference(hit.source, hit.page, name), hit))
        return scored

    def facets(self) -> list[Facet]:
        """Columns with few values, under public names."""
        self._refresh()
        return self.index.facets(self._names)

    def columns(self) -> dict[str, str]:
        """What a filter may use."""
        return self.index.columns()

    @property
    def searched(self) -> float:
        """The share of all pages that the last search of this thread looked through."""
        return self.index.searched

    def page(self, identity: str) -> PageReference:
        """A page by its id; KeyError if there is none."""
        self._refresh()
        return self._pages[identity]

    def find(self, document: str, number: int) -> PageReference:
        """A page by its document's public name and its number; KeyError if there is none."""
        self._refresh()
        source = next((source for source, name in self._names.items() if name == document), "")
        return self._pages[page_id(source, number)]

    def documents(self) -> dict[str, int]:
        """How many pages of each document are indexed, by public name."""
        self._refresh()
        return dict(sorted(Counter(page.document for page in self._pages.values()).items()))

    def stored(self, page: PageReference) -> tuple[EncodedPage, dict[str, Any]]:
        """A page as it is stored, and its row."""
        return self.index.page_at(page.source, page.number)

    def picture(self, page: PageReference, longer: int) -> bytes:
        """A JPEG of the page, at most `longer` pixels on its longer side."""
        row = self.index.details_at(page.source, page.number)
        key = (f"{page.source}:{row['modified']}", page.number, longer)
        with self._lock:
            if key in self._pictures:
                self._pictures.move_to_end(key)
                return self._pictures[key]
        image, _ = find_image(row, longer * longer)
        image.thumbnail((longer, longer), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=85)
        with self._lock:
            self._pictures[key] = buffer.getvalue()
            while len(self._pictures) > PICTURES:
                self._pictures.popitem(last=False)
        return buffer.getvalue()

    def thumbnail(self, page: PageReference) -> bytes:
        """The stored thumbnail, or a small picture if the index keeps none."""
        row = self.index.details_at(page.source, page.number)
        return row["thumbnail"] or self.picture(page, 360)

    def explain(self, page: PageReference, query: str) -> dict[str, Any]:
        """Which patches answer which word, as JSON."""
        encoded_page, row = self.stored(page)
        explained = self.index.model.explain_query(query)
        answer = evidence(explained.vectors, explained.labels, explained.words, encoded_page)
        return {**as_json(answer, encoded_page), "original": is_unchanged(row)}

    def words(self, page: PageReference, query: str) -> list[Box]:
        """Where the words of a query stand on a page: left, top, right, bottom as shares of it."""
        return find_words(self.index, query, page.source, page.number)

    def compare(self, page: PageReference, query: str, compressors: Sequence[Compressor]) -> list[dict[str, Any]]:
        """The same page and query under several compressors; needs the original document.

        `retention` is the share of the full index's score in percent, None if that is not above 0.
        """
        row = self.index.details_at(page.source, page.number)
        image, original = find_image(row, self.index.model.page_pixels)
        if not original:
            raise AnchorFoldError("the original document is not at hand: methods cannot be compared on this page.")
        model = require_comparable(self.index.model)
        (state,) = model.page_states([image], wanted_signals(compressors, model.settings))
        full = model.compress(state, FullIndex())
        explained = model.explain_query(query)
        scored = len(explained.vectors) > 0 and float(maxsim([explained.vectors], [full])) > 0
        answers = []
        for compressor in compressors:
            encoded_page = model.compress(state, compressor)
            answer = evidence(explained.vectors, explained.labels, explained.words, encoded_page)
            retention = round(score_retention(explained.vectors, full, encoded_page), 2) if scored else None
            answers.append({"retention": retention, **as_json(answer, encoded_page)})
        return answers


def as_json(answer: Evidence, page: EncodedPage) -> dict[str, Any]:
    """Evidence with its patches: only those that are lit, as [patch, value]."""
    words = [
        {
            "word": word,
            "score": round(float(score), 4),
            "patches": [[int(p), round(float(values[p]), 5)] for p in values.nonzero().flatten()],
        }
        for word, score, values in zip(answer.words, answer.scores, answer.maps, strict=True)
    ]
    return {
        "score": round(answer.score, 4),
        "vectors": len(page),
        "full_vectors": page.full,
        "most": round(float(answer.whole.max()), 5) if answer.maps.numel() else 0.0,
        "words": words,
        "tiles": tiles_of(page.grid),
    }


def tiles_of(grid: PatchGrid | None) -> list[list[float]]:
    """Rows, columns, left, top, right, bottom of each tile; patches are numbered through them in order."""
    if grid is None:
        return []
    return [[t.rows, t.columns, t.left, t.top, t.right, t.bottom] for t in grid.tiles]
