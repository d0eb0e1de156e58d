"""Documents and pages as the store receives and returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from anchorfold.page import EncodedPage

FROM_FILE = ("title", "author", "language")  # read from the file; metadata given by the user takes precedence
BUILT_IN = {
    "document": "text", "folder": "text", "kind": "text", "page": "integer", "pages": "integer", "modified": "date",
    **dict.fromkeys(FROM_FILE, "text"),
}  # fmt: skip
Plain = str | int | float | bool  # a metadata value as JSON stores it; a date is ISO text


class Version(NamedTuple):
    """A commit of an index. `token` is random: two histories never share one, even after a restored backup."""

    index_id: str
    commits: int
    token: str

    def is_after(self, other: Version) -> bool:
        """Whether this is a later commit of the same index."""
        return self.index_id == other.index_id and self.commits > other.commits


@dataclass(frozen=True)
class PageText:
    """The text of a page, from its text layer or read by OCR; empty if there is none."""

    text: str
    ocr: bool = False


@dataclass(frozen=True)
class Snippet:
    """A passage of a page; `matches` are the (start, end) positions of query words in it."""

    text: str
    matches: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PageRow:
    """A page to be stored; one that could not be read has no vectors and a `problem`.

    Attributes:
        source: absolute path of the document.
        document: name of the document as given by the user.
        page: page number, from 1.
        pages: number of pages of the document.
        digest: digest of the file.
        size: bytes of the file.
        modified: modification time of the file in nanoseconds.
        live: False to stage the page until the whole version is promoted.
        encoded: the compressed page.
        thumbnail: a small WebP or JPEG, or nothing.
        problem: why the page could not be read.
        text: the text of the page; None if it is unknown.
        file_metadata: title, author and language from the file.
        metadata: values given by the user, used when the document is new.
    """

    source: str
    document: str
    page: int
    pages: int
    digest: str
    size: int
    modified: int
    live: bool
    encoded: EncodedPage | None
    thumbnail: bytes = b""
    problem: str | None = None
    text: PageText | None = None
    file_metadata: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Plain | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DocumentVersion:
    """One version of a document. A staged version is not live: it is not searched until it is promoted."""

    id: int
    document_id: int
    source: str
    name: str
    public_name: str
    digest: str
    size: int
    modified: int
    pages: int
    live: bool
    metadata: Mapping[str, Plain] = field(default_factory=dict)
    file_metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass
class DocumentState:
    """The live version of a document, how many of its pages are `stored`, and pages staged per newer digest."""

    document: str
    digest: str = ""
    size: int = -1
    modified: int = -1
    pages: int = 0
    stored: int = 0
    staged: dict[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether all pages of the live version are stored."""
        return bool(self.digest) and self.stored == self.pages


def merged_metadata(before: Mapping[str, Plain], values: Mapping[str, Plain | None]) -> dict[str, Plain]:
    """Metadata with other values; None removes one.

    Examples:
        >>> merged_metadata({"year": 2023, "draft": True}, {"year": 2024, "draft": None})
        {'year': 2024}
    """
    return {name: value for name, value in {**before, **values}.items() if value is not None}
