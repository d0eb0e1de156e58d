"""What the server knows of an index: pages by opaque ids, names without the machine's paths, pictures, evidence."""

from __future__ import annotations

import io
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from PIL import Image

from anchorfold.backbones.encoder import require_comparable
from anchorfold.compressors import Compressor, FullIndex, wanted_signals
from anchorfold.documents.originals import find_image, is_unchanged
from anchorfold.documents.page_text import Box
from anchorfold.errors import AnchorFoldError
from anchorfold.explain.evidence import Evidence, evidence
from anchorfold.explain.page_text import find_words
from anchorfold.index import Hit, Index
from anchorfold.index.hits import Mode
from anchorfold.index.store.facets import Facet
from anchorfold.page import EncodedPage, PatchGrid
from anchorfold.scoring import maxsim, score_retention

SUGGESTED = 3  # similar names in a message
SNIPPET = 200  # characters
ABSOLUTE = re.compile(r"(?<![\w./])/(?:[^\s/'\"`:,;()]+/)+([^\s/'\"`:,;()]*)")  # an absolute path; its last component
PICTURES = 64  # rendered pages that stay in memory


@dataclass(frozen=True)
class PageReference:
    """A page of the index: its public id, the path and number of the page, and the public name of its document."""

    id: str
    source: str
    number: int
    document: str


def public_model(name: str) -> str:
    """A hub name as it is; of a folder only its last part."""
    return os.path.basename(os.path.normpath(name)) if os.path.isabs(name) or name.startswith(".") else name


class Library:
    """An index behind the server. Safe for threads."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._lock = threading.Lock()
        self._pictures: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()

    def warm_up(self) -> None:
        """Load the model and open the vector files before the first request."""
        _ = self.index.model  # evidence requires the whole model, not only its query side
        self.index.warm_up()

    def search(
        self,
        query: str,
        top: int,
        document: str | None = None,
        where: str | None = None,
        mode: Mode | None = None,
    ) -> list[tuple[str, PageReference, Hit]]:
        """The best pages as (id, page, hit).

        Args:
            query: the query.
            top: maximum number of pages.
            document: public name or pattern; one that matches nothing, or is blank, returns no pages.
            where: a filter on public names.
            mode: visual, text or hybrid.
        """
        if document is not None and not self.index.has_public_document(document):
            return []
        hits = self.index.search_public(query, top, mode, document, where)
        return [(h.page_id, PageReference(h.page_id, h.source, h.page, h.public_name), h) for h in hits]

    def facets(self) -> list[Facet]:
        """Columns with few values, under public names."""
        return self.index.facets(public=True)

    def columns(self) -> dict[str, str]:
        """What a filter may use."""
        return self.index.columns()

    @property
    def searched(self) -> float:
        """The share of all pages that the last search of this thread looked through."""
        return self.index.searched

    def page(self, identity: str) -> PageReference:
        """A page by its id; KeyError if there is none."""
        found = self.index.find_public_page(identity)
        if found is None:
            raise KeyError(identity)
        source, name, number = found
        return PageReference(identity, source, number, name)

    def find(self, document: str, number: int) -> PageReference:
        """A page by the public name of its document, or the end of it if that is unique.

        Raises:
            AnchorFoldError: there is no such document or page; similar names are suggested.
        """
        identity = self.index.public_page_id(document, number)
        if identity is None:
            names = list(self.documents())
            ends = [name for name in names if name.endswith(f"/{document}")]
            if len(ends) == 1:
                return self.find(ends[0], number)
            similar = ends[:SUGGESTED] or get_close_matches(document, names, SUGGESTED)
            similar = similar or [n for n in names if document.lower() in n.lower()][:SUGGESTED]
            hint = f" Similar names: {', '.join(similar)}." if similar else " list_documents lists all documents."
            raise AnchorFoldError(f"the index contains no document {document!r}.{hint}")
        try:
            return self.page(identity)
        except KeyError:
            raise AnchorFoldError(f"{document} has no indexed page {number}.") from None

    def public_message(self, error: AnchorFoldError) -> str:
        """An error message without absolute paths."""
        text = str(error)
        for path in {str(self.index.path), str(self.index.path.resolve())}:
            text = text.replace(path, "the index")
        return ABSOLUTE.sub(r"\1", text)

    def snippet(self, query: str, hit: Hit) -> str:
        """The passage of a hit, or the beginning of its text if no word matches; empty without text."""
        if hit.snippet:
            return hit.snippet
        text = self.index.snippet(query, hit.source, hit.page)
        return text if len(text) <= SNIPPET else text[:SNIPPET].rpartition(" ")[0] + " …"

    def documents(self) -> dict[str, int]:
        """Number of indexed pages of each document, by public name."""
        return {name: pages for name, (_, pages) in self.index.public_documents().items() if pages}

    def details(self, page: PageReference) -> dict[str, Any]:
        """What is stored of a page besides its vectors."""
        return self.index.details_at(page.source, page.number)

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
