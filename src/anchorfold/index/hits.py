"""What a search returns, and what it is restricted to."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Literal, get_args

from anchorfold.errors import AnchorFoldError
from anchorfold.index.filters.values import Value

if TYPE_CHECKING:
    from PIL.Image import Image

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
        """The page as a PIL image, at most `pixels` on its longer side.

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
            picture = base64.b64encode(self._repr_png_()).decode()
        except AnchorFoldError as error:
            return f"<p>{name} ({escape(str(error))})</p>"
        image = f'<img alt="{name}" src="data:image/png;base64,{picture}">'
        return f"<figure>{image}<figcaption>{name}<br>{escape(self.snippet)}</figcaption></figure>"


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
