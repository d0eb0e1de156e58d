"""Search requests and their results."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from anchorfold.errors import AnchorFoldError, InvalidArgumentError
from anchorfold.filters.values import Value

if TYPE_CHECKING:
    from PIL.Image import Image

Mode = Literal["visual", "text", "hybrid"]
MODES: tuple[str, ...] = get_args(Mode)
PageKey = tuple[str, int]  # absolute path of the document, and page number from 1


@dataclass(frozen=True)
class Hit:
    """A page that matches a query.

    Attributes:
        document: name of the document as given when it was indexed.
        page: page number, from 1.
        score: what hits are ordered by: `visual`, `text`, or both fused.
        source: absolute path of the document.
        visual: MaxSim score; None if it was not computed.
        text: BM25 score; None if it was not computed.
        snippet: a passage of the page's text.
        matches: (start, end) positions of query words in the snippet.
        metadata: metadata of the document by column.
        public_name: name of the document without absolute paths, for clients of a server.
        page_id: identifier of the page for clients of a server; stable while the document exists.
        render: renders the page; set by an open index.

    Examples:
        >>> hit = index.search("net revenue by region")[0]
        >>> hit.document, hit.page
        ('reports/annual.pdf', 2)
    """

    document: str
    page: int
    score: float
    source: str
    visual: float | None = None
    text: float | None = None
    snippet: str = ""
    matches: tuple[tuple[int, int], ...] = ()
    metadata: Mapping[str, Value] = field(default_factory=dict, compare=False)
    public_name: str = field(default="", compare=False, repr=False)
    page_id: str = field(default="", compare=False, repr=False)
    render: Callable[[Hit, int], Image] | None = field(default=None, compare=False, repr=False)

    def image(self, pixels: int = 1000) -> Image:
        """Return the page as a PIL image, at most `pixels` on its longer side.

        It is rendered from the original file if that is unchanged, otherwise it is the stored thumbnail.
        """
        if self.render is None:
            raise AnchorFoldError(f"{self.document} page {self.page} was not returned by an open index: search again.")
        return self.render(self, pixels)

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.image(400).save(buffer, "PNG")
        return buffer.getvalue()

    def _repr_html_(self) -> str:
        name = f"{escape(self.document)}, page {self.page}, score {self.score:.3f}"
        try:
            encoded_image = base64.b64encode(self._repr_png_()).decode()
        except AnchorFoldError as error:
            return f"<p>{name} ({escape(str(error))})</p>"
        image = f'<img alt="{name}" src="data:image/png;base64,{encoded_image}">'
        return f"<figure>{image}<figcaption>{name}<br>{escape(self.snippet)}</figcaption></figure>"


@dataclass(frozen=True)
class SearchRequest:
    """One search: queries, options and filters.

    Attributes:
        texts: query texts; required by text and hybrid search.
        vectors: `(tokens, d)` arrays or tensors of the queries; required by visual and hybrid search.
        top_k: maximum number of hits per query.
        mode: visual (MaxSim), text (BM25) or hybrid (both); if None, hybrid, or visual if the index stores no text.
        documents: names, paths, folders or patterns of documents to search; all if None.
        where: SQL condition on metadata columns.
        exact: score every page instead of candidates from the posting lists.
        candidates: number of pages to score if not `exact`; the default of the index if None.
        per_document: return the best page of each document only.
        public: whether `documents` and `where` refer to public names, as for clients of a server.

    Raises:
        InvalidArgumentError: a value is out of range.
    """

    texts: Sequence[str] = ()
    vectors: Sequence[Any] = ()
    top_k: int = 10
    mode: Mode | None = None
    documents: str | Sequence[str] | None = None
    where: str | None = None
    exact: bool = False
    candidates: int | None = None
    per_document: bool = False
    public: bool = False

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise InvalidArgumentError(f"top_k must be at least 1, got {self.top_k}.")
        if self.mode is not None and self.mode not in MODES:
            raise InvalidArgumentError(f"unknown search mode {self.mode!r}: choose one of {', '.join(MODES)}.")
        if self.candidates is not None and self.candidates < 1:
            raise InvalidArgumentError(f"candidates must be at least 1, got {self.candidates}.")


def best_per_document(hits: Iterable[Hit]) -> list[Hit]:
    """Return the first hit of each document, in order."""
    best: dict[str, Hit] = {}
    for hit in hits:
        best.setdefault(hit.source, hit)
    return list(best.values())


def as_names(names: str | Path | Sequence[str | Path]) -> list[str]:
    """Return one name or several as a list of strings."""
    return [str(names)] if isinstance(names, (str, Path)) else [str(name) for name in names]


def matching(name: str, documents: Mapping[str, str]) -> dict[str, str]:
    """Those of some documents, path to name, that a name refers to."""
    from anchorfold.documents.files import matches

    return {source: document for source, document in documents.items() if matches(name, document, source)}


def selector(names: str | Sequence[str], documents: Iterable[tuple[str, str]]) -> Callable[[str, str], bool]:
    """Return a predicate on name and path; a name that is exactly a document's name or path refers to that one only."""
    from anchorfold.documents.files import matches, require_name

    wanted = as_names(names)
    for name in wanted:
        require_name(name)
    exact = set(wanted)
    known = {text for document in documents for text in document}
    patterns = [name for name in wanted if name not in known]

    def selected(name: str, source: str) -> bool:
        return name in exact or source in exact or any(matches(pattern, name, source) for pattern in patterns)

    return selected
