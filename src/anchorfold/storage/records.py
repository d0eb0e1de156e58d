"""Documents and pages as a store receives and returns them."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from anchorfold.filters.values import Plain

if TYPE_CHECKING:
    from anchorfold.page import EncodedPage


class Version(NamedTuple):
    """A commit of an index. `token` is random: two histories never share one, even after a restored backup."""

    index_id: str
    commits: int
    token: str

    def is_after(self, other: Version) -> bool:
        """Return whether this is a later commit of the same index."""
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


def document_states(rows: Iterable[Sequence[Any]]) -> dict[str, DocumentState]:
    """Return the state of every document by path.

    Args:
        rows: one per version: path, name, live, digest, number of stored pages, size, modified, pages.
    """
    states: dict[str, DocumentState] = {}
    for path, name, live, digest, stored, *values in rows:
        state = states.setdefault(path, DocumentState(name))
        if live:
            state.digest, state.stored = digest, stored
            state.size, state.modified, state.pages = values
        elif stored:
            state.staged[digest] = stored
    return states


def merged_metadata(before: Mapping[str, Plain], values: Mapping[str, Plain | None]) -> dict[str, Plain]:
    """Metadata with other values; None removes one.

    Examples:
        >>> merged_metadata({"year": 2023, "draft": True}, {"year": 2024, "draft": None})
        {'year': 2024}
    """
    return {name: value for name, value in {**before, **values}.items() if value is not None}


def public_name(name: str, taken: Callable[[str], bool]) -> str:
    """Choose the public name of a new document.

    A relative name is public as it is. Of an absolute path, or one outside the current folder, as many of its last
    components are shown as are needed to make it unique; a number is appended if that is not enough. Letters with
    accents are composed (Unicode NFC), so that no two names look the same and clients can write them.

    Args:
        name: the name as the user gave it.
        taken: whether a public name is in use.

    Examples:
        >>> public_name("reports/a.pdf", {"a.pdf"}.__contains__)
        'reports/a.pdf'
        >>> public_name("/home/me/x/a.pdf", {"a.pdf"}.__contains__)
        'x/a.pdf'
    """
    name = unicodedata.normalize("NFC", name)
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")] or [name]
    if os.path.isabs(name) or name.startswith(".."):
        # The first component of an absolute path is never shown.
        names = ["/".join(parts[-length:]) for length in range(1, max(2, len(parts)))]
    else:
        names = [name]
    return next((candidate for candidate in names if not taken(candidate)), None) or _numbered(names[0], taken)


def _numbered(name: str, taken: Callable[[str], bool]) -> str:
    """Append a free number, in a logarithmic number of look-ups."""
    stem, ending = os.path.splitext(name)
    used, free = 1, 2
    while taken(f"{stem} ({free}){ending}"):
        used, free = free, 2 * free
    while free - used > 1:
        middle = (used + free) // 2
        if taken(f"{stem} ({middle}){ending}"):
            used = middle
        else:
            free = middle
    return f"{stem} ({free}){ending}"
