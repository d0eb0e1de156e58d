"""The operations that an index requires of its store.

`EmbeddedStore` implements them with SQLite and vector files. `anchorfold.testing.contracts.StoreContract` tests an
implementation. Pages are identified by the path of their document and their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from anchorfold.filters.values import Plain
from anchorfold.storage.hits import Hit, PageKey, SearchRequest
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.records import DocumentState, PageRow, PageText, Snippet, Version

if TYPE_CHECKING:
    from anchorfold.storage.info import Facet, IndexInfo

T = TypeVar("T")


class PageStore(Protocol):
    """Where the pages of an index are stored and searched. Thread-safe."""

    settings: IndexSettings

    @property
    def location(self) -> str:
        """The folder or address, for messages."""

    @property
    def version(self) -> Version:
        """The newest commit; differs whenever anything changed."""

    def refresh(self) -> Version:
        """Re-read the settings."""

    # Planning: what is stored of each document.

    def documents(self) -> dict[str, DocumentState]:
        """The state of every document by path."""

    def stored_pages(self, sources: Sequence[str]) -> dict[str, dict[str, set[int]]]:
        """Numbers of stored pages by path and digest."""

    # Writing: within `writing`, one commit per call.

    def writing(
        self,
        wait: float = -1,
        waiting: Callable[[str], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> AbstractContextManager[None]:
        """Exclude other writers; raises LockedError after `wait` seconds."""

    def append(self, rows: Sequence[PageRow]) -> None:
        """Add pages, live or staged."""

    def promote(self, source: str, digest: str, size: int, modified: int) -> None:
        """Replace a document by its staged version."""

    def touch(self, source: str, size: int, modified: int) -> None:
        """Store another size and time of a document with the same content."""

    def move(self, sources: Mapping[str, str]) -> None:
        """Change paths of documents, from old to new."""

    def remove(self, sources: Sequence[str]) -> None:
        """Delete documents."""

    def drop_staged(self, sources: Sequence[str]) -> None:
        """Delete staged versions of documents."""

    def set_metadata(self, values: Mapping[str, Mapping[str, Plain | None]], types: Mapping[str, str]) -> int:
        """Set metadata values by path and column; returns the number of documents that changed."""

    def enable_text(self, ocr: bool) -> None:
        """Store the text of pages from now on."""

    def put_texts(
        self, source: str, digest: str, texts: Mapping[int, PageText], thumbnails: Mapping[int, bytes] | None = None
    ) -> None:
        """Store texts and thumbnails of pages of a live document."""

    def finish(self) -> None:
        """Maintenance at the end of a run."""

    # Reading.

    def names(self) -> dict[str, str]:
        """Paths and names of all live documents."""

    def read_page(self, source: str, page: int, function: Callable[[Any], T]) -> T | None:
        """Call a function with a live page; None if there is no such page."""

    def page_text(self, source: str, page: int) -> PageText | None:
        """The text of a live page."""

    def columns(self) -> dict[str, str]:
        """Types of the columns that a filter may use."""

    def facets(self, public: bool = False) -> list[Facet]:
        """Columns with few values."""

    def info(self) -> IndexInfo:
        """Counts, sizes and settings."""

    # Searching.

    def search_visual(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the best pages by MaxSim for each of `request.vectors`."""

    def page_scores(self, query: Any, pages: Sequence[PageKey]) -> dict[PageKey, float]:
        """MaxSim scores of some pages."""

    def search_text(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the best pages by BM25 for each of `request.texts`."""

    def text_scores(self, query: str, pages: Sequence[PageKey]) -> dict[PageKey, float | None]:
        """BM25 scores of some pages: 0 without a match, None without text."""

    def snippets(self, query: str, pages: Sequence[PageKey]) -> dict[PageKey, Snippet]:
        """Passages of some pages that match a query."""
