"""Read access to an index for clients: pages by opaque id, public document names, images and evidence."""

from __future__ import annotations

import io
import os
import re
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from PIL import Image

from anchorfold.backbones.encoder import require_comparable
from anchorfold.compressors import Compressor, FullIndex, required_signals
from anchorfold.core.scoring import maxsim, score_retention
from anchorfold.documents.files import unescape_path
from anchorfold.documents.formats import Box
from anchorfold.errors import AnchorFoldError
from anchorfold.explanation.evidence import Evidence, compute_evidence
from anchorfold.explanation.text_lookup import query_word_boxes
from anchorfold.indexes.index import Index
from anchorfold.indexes.reader import Page
from anchorfold.page import EncodedPage
from anchorfold.retrieval.match_strength import WEAK_SIMILARITY, is_weak_match
from anchorfold.storage.hits import Hit, SearchRequest, selector

MAX_SUGGESTIONS = 3
SNIPPET_LENGTH = 200  # characters
# An absolute path, and its last component; in quotes, as in errors of the operating system, it may contain spaces.
ABSOLUTE_PATH = re.compile(r"(?<![\w./])/(?:[^\s/'\"`:,;()]+/)+([^\s/'\"`:,;()]*)")
QUOTED_PATH = re.compile(r"(['\"`])/(?:[^'\"`]*/)?([^'\"`/]*)\1")
PAGE_ID = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)")  # no other spelling of the numbers: one id per page
CACHED_IMAGES = 64  # rendered pages


@dataclass(frozen=True)
class PageReference:
    """A page: its public id, the path of its file, its number, and the public name of its document."""

    id: str
    source: str
    number: int
    document: str


def public_model(name: str) -> str:
    """Return the name of a model without the directories of a local path."""
    return os.path.basename(os.path.normpath(name)) if os.path.isabs(name) or name.startswith(".") else name


class IndexService:
    """Read access to an index for clients; thread-safe."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._lock = threading.Lock()
        self._images: OrderedDict[tuple[str, int, int], bytes] = OrderedDict()

    def warm_up(self) -> None:
        """Load the model and open the vector files before the first request."""
        _ = self.index.encoder  # evidence requires the whole model, not only its query side
        self.index.store.warm_up()

    def search(self, request: SearchRequest) -> list[tuple[str, PageReference, Hit]]:
        """Return the best pages for the one query of a request as (id, page, hit).

        Names are public names. A document that does not exist, or is blank, has no pages.
        """
        if isinstance(request.documents, str) and not self.has_document(request.documents):
            return []
        (hits,) = self.index.run(replace(request, public=True))
        return [(h.page_id, PageReference(h.page_id, h.source, h.page, h.public_name), h) for h in hits]

    def is_weak(self, query: str, hits: Sequence[Hit]) -> bool | None:
        """Return whether the hits match few words of the query; None if unknown."""
        if self.index.settings.model not in WEAK_SIMILARITY:
            return None
        (vectors,) = self.index.encode_queries([query])
        return is_weak_match(self.index.store, query, vectors, hits)

    def has_document(self, name: str) -> bool:
        """Return whether a public name or pattern matches any document."""
        names = self.index.store.names(public=True).values()
        return bool(name.strip()) and any(map(selector(name, [(n, n) for n in names]), names, names))

    def page(self, identity: str) -> PageReference:
        """Return a page by its id; raise KeyError if it does not exist."""
        page = self.index.store.find_page(identity) if PAGE_ID.fullmatch(identity) else None
        if page is None:
            raise KeyError(identity)
        source, name, number = page
        return PageReference(identity, source, number, name)

    def find(self, document: str, number: int) -> PageReference:
        """Return a page by the public name of its document, or a unique end of the name.

        Raises:
            AnchorFoldError: the document or page does not exist; the message suggests similar names.
        """
        composed = unicodedata.normalize("NFC", document)
        find = self.index.store.public_page_id
        identity = find(document, number) or find(composed, number)
        if identity is None:
            ends = self._ending_with(document)
            if len(ends) == 1:
                return self.find(ends[0], number)
            raise self.unknown_document(document)
        try:
            return self.page(identity)
        except KeyError:
            raise AnchorFoldError(f"{document} has no indexed page {number}.") from None

    def unknown_document(self, document: str) -> AnchorFoldError:
        """Return the error for a document that the index does not contain, with similar names."""
        names, file = list(self.documents()), os.path.basename(document)
        similar = self._ending_with(document) or [name for name in names if os.path.basename(name) == file]
        similar = similar or get_close_matches(document, names, MAX_SUGGESTIONS)
        similar = similar or [name for name in names if document.lower() in name.lower()]
        hint = f"Similar names: {', '.join(similar[:MAX_SUGGESTIONS])}." if similar else "list_documents lists all."
        # Not the path: whether its file is indexed is not public.
        shown = f".../{file}" if os.path.isabs(document) else document
        return AnchorFoldError(f"the index contains no document {shown!r}. {hint}")

    def _ending_with(self, document: str) -> list[str]:
        return [name for name in self.documents() if name.endswith(f"/{document}")]

    def similar(self, page: PageReference, top_k: int) -> list[tuple[str, PageReference, Hit]]:
        """Return the pages most similar to a page as (id, page, hit)."""
        hits = self.index.similar_to(self.index.page_at(page.source, page.number), top_k, public=True)
        return [(h.page_id, PageReference(h.page_id, h.source, h.page, h.public_name), h) for h in hits]

    def neighbor(self, page: PageReference, step: int) -> str | None:
        """Return the id of the page `step` pages later in the same document; None if it is not indexed."""
        identity = self.index.store.public_page_id(page.document, page.number + step)
        return identity if identity is not None and self.index.store.find_page(identity) is not None else None

    def original(self, page: PageReference) -> tuple[str, str]:
        """Return the path and the name of the original document.

        Raises:
            AnchorFoldError: it was deleted or changed.
        """
        if not self.details(page).has_original:
            raise AnchorFoldError("the original document was deleted or changed.")
        return unescape_path(page.source), os.path.basename(page.document)

    def public_message(self, error: AnchorFoldError) -> str:
        """Return the message of an error without absolute paths."""
        text, model = str(error), self.index.settings.model
        for location in {self.index.location, os.path.realpath(self.index.location)}:
            text = re.sub(rf"(?<![\w./-]){re.escape(location)}(?![\w-]|\.\w)", "the index", text)
        with suppress(AnchorFoldError):  # the database may be what is damaged
            for source, name in self.index.store.names(public=True).items() if "/" in text else ():
                text = text.replace(source, name)
        text = QUOTED_PATH.sub(r"\1\2\1", text).replace(model, public_model(model))
        return ABSOLUTE_PATH.sub(r"\1", text)

    def snippet(self, query: str, hit: Hit) -> str:
        """Return a passage of the page text: around matching words, or its beginning; empty without text."""
        if hit.snippet:
            return hit.snippet
        if not self.index.settings.text:
            return ""
        store, key = self.index.store, (hit.source, hit.page)
        if passage := store.snippets(query, [key]).get(key):
            text = passage.text
        else:
            stored = store.page_text(*key)
            text = "" if stored is None else " ".join(stored.text.split())
        return text if len(text) <= SNIPPET_LENGTH else text[:SNIPPET_LENGTH].rpartition(" ")[0] + " …"

    def documents(self) -> dict[str, int]:
        """Return the number of indexed pages of each document, by public name."""
        return {name: pages for name, pages in self.index.store.public_documents().items() if pages}

    def details(self, page: PageReference) -> Page:
        """Return a stored page without its vectors and text."""
        return self.index.page_at(page.source, page.number, vectors=False)

    def image(self, page: PageReference, size: int) -> bytes:
        """Return a JPEG of a page with at most `size` pixels on its longer side."""
        stored = self.details(page)
        key = (f"{page.source}:{stored.modified}", page.number, size)
        with self._lock:
            if key in self._images:
                self._images.move_to_end(key)
                return self._images[key]
        image, _ = stored.render(size * size)
        image.thumbnail((size, size), Image.Resampling.LANCZOS)
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=85)
        with self._lock:
            self._images[key] = buffer.getvalue()
            while len(self._images) > CACHED_IMAGES:
                self._images.popitem(last=False)
        return buffer.getvalue()

    def thumbnail(self, page: PageReference) -> bytes:
        """Return the stored thumbnail, or a small image if the index has none."""
        return self.details(page).thumbnail or self.image(page, 360)

    def explain(self, page: PageReference, query: str) -> dict[str, Any]:
        """Return the score of each query word and of each patch, as JSON."""
        stored = self.index.page_at(page.source, page.number)
        encoded_page = stored.require_encoded()
        explained = self.index.encoder.explain_query(query)
        matches = compute_evidence(explained.vectors, explained.labels, explained.words, encoded_page)
        return {**evidence_as_json(matches, encoded_page), "original": stored.has_original}

    def words(self, page: PageReference, query: str) -> list[Box]:
        """Return the positions of query words: left, top, right, bottom as fractions of the page."""
        return query_word_boxes(self.index, query, page.source, page.number)

    def compare(self, page: PageReference, query: str, compressors: Sequence[Compressor]) -> list[dict[str, Any]]:
        """Return the evidence of a page under several compressors; requires the original document.

        `retention` is the percentage of the uncompressed score, or None if that is not positive.
        """
        image, is_original = self.details(page).render(self.index.encoder.page_pixels)
        if not is_original:
            raise AnchorFoldError("methods cannot be compared: the original document was deleted or changed.")
        model = require_comparable(self.index.encoder)
        (state,) = model.page_states([image], required_signals(compressors, model.layer_settings))
        full = model.compress_page(state, FullIndex())
        explained = model.explain_query(query)
        scored = len(explained.vectors) > 0 and float(maxsim([explained.vectors], [full])) > 0
        results = []
        for compressor in compressors:
            encoded_page = model.compress_page(state, compressor)
            matches = compute_evidence(explained.vectors, explained.labels, explained.words, encoded_page)
            retention = round(score_retention(explained.vectors, full, encoded_page), 2) if scored else None
            results.append({"retention": retention, **evidence_as_json(matches, encoded_page)})
        return results


def evidence_as_json(matches: Evidence, page: EncodedPage) -> dict[str, Any]:
    """Return evidence as JSON; patches with a value above 0 as [patch, value]."""
    words = [
        {
            "word": word,
            "score": round(float(score), 4),
            "patches": [[int(p), round(float(values[p]), 5)] for p in values.nonzero().flatten()],
        }
        for word, score, values in zip(matches.words, matches.scores, matches.maps, strict=True)
    ]
    return {
        "score": round(matches.score, 4),
        "vectors": len(page),
        "full_vectors": page.full,
        "max_value": round(float(matches.query_map.max()), 5) if matches.maps.numel() else 0.0,
        "words": words,
        "tiles": [[t.rows, t.columns, t.left, t.top, t.right, t.bottom] for t in page.grid.tiles] if page.grid else [],
    }
