"""What a search returns, and what it is restricted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from anchorfold.errors import AnchorFoldError
from anchorfold.index.filters.values import Value

Mode = Literal["visual", "text", "hybrid"]
MODES: tuple[str, ...] = get_args(Mode)
PageKey = tuple[str, int]  # absolute path of the document, and page number from 1


def require_mode(mode: str) -> None:
    """Raise an error for an unknown search mode."""
    if mode not in MODES:
        raise AnchorFoldError(f"unknown search mode {mode!r}: choose one of {', '.join(MODES)}.")


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
    public_name: str = field(default="", compare=False)
    page_id: str = field(default="", compare=False)


@dataclass(frozen=True)
class Selection:
    """The pages that a search may return.

    Attributes:
        documents: names, paths, folders or patterns of documents; all if None.
        where: an SQL condition on metadata columns; all if None.
        public: whether names are public names, as for clients of a server.
    """

    documents: str | Sequence[str] | None = None
    where: str | None = None
    public: bool = False


EVERYTHING = Selection()
