"""The operations that an index requires of its store.

`EmbeddedStore` implements them with SQLite and vector files; `anchorfold.databases` has stores in other databases.
`anchorfold.testing.store_contract.StoreContract` tests an implementation. Pages are identified by the path of their
document and their number. What can be derived from these operations is in `anchorfold.retrieval.derived`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from anchorfold.filters.values import Plain
from anchorfold.storage.hits import Hit, PageKey, SearchRequest
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.page_content import PageContent
from anchorfold.storage.records import DocumentState, PageRow, PageText, Snippet, Version

if TYPE_CHECKING:
    from anchorfold.storage.checking import Damage
    from anchorfold.storage.info import Facet, IndexInfo

T = TypeVar("T")


class PageCollection(Protocol):
    """One commit of an index, for exporters."""

    @property
    def settings(self) -> IndexSettings:
        """The settings of the index."""

    @property
    def location(self) -> str:
        """The resolved folder or the URL without password, which identifies the index."""

    def pages(self) -> Iterator[PageContent]:
        """All live pages that have vectors, in the same order on each call."""


class PageStore(Protocol):
    """Where the pages of an index are stored and searched. Thread-safe."""

    settings: IndexSettings

    @property
    def location(self) -> str:
        """The folder, or the URL without password, for messages."""

    @property
    def name(self) -> str:
        """A short name, for titles and as the default name of an export."""

    @property
    def version(self) -> Version:
        """The newest commit; differs whenever anything changed."""

    def refresh(self) -> Version:
        """Re-read the settings."""

    # Planning: what is stored of each document.

    def documents(self) -> dict[str, DocumentState]:
        """Return the state of every document by path."""

    def stored_pages(self, sources: Sequence[str]) -> dict[str, dict[str, set[int]]]:
        """Return numbers of stored pages by path and digest."""

    def incomplete_pages(self) -> dict[str, tuple[str, list[int]]]:
        """Return digest and page numbers, by path, of readable live pages without stored text or thumbnail.

        With OCR, pages with an empty text that was not read by OCR are included. Empty unless `enable_text` was called,
        or a version with readable pages without text was promoted, since `set_text_complete`.
        """

    # Writing: within `writing`, one commit per call.

    def writing(
        self,
        wait: float = -1,
        waiting: Callable[[str], None] | None = None,
        stop: Callable[[], bool] | None = None,
        sources: Collection[str] | None = None,
    ) -> AbstractContextManager[None]:
        """Exclude other writers.

        Args:
            wait: seconds to wait for another writer; negative waits indefinitely.
            waiting: called once with a message if another writer is active.
            stop: polled while waiting; True gives up.
            sources: the only documents that are written. A store may then allow writers of other documents; without
                it, all other writers are excluded.

        Raises:
            LockedError: another writer is active.
        """

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

    def set_text_complete(self) -> None:
        """Record that every stored page has its text: `incomplete_pages` is empty until more pages are stored."""

    def finish(self) -> None:
        """Maintenance at the end of a run."""

    def delete(self) -> None:
        """Delete the index with everything in it."""

    # Reading.

    def names(self, public: bool = False) -> dict[str, str]:
        """Return paths of all live documents and their names, or their public names."""

    def public_documents(self) -> dict[str, int]:
        """Number of readable pages of all live documents by public name, sorted."""

    def find_page(self, identity: str) -> tuple[str, str, int] | None:
        """Path, public name and number of a readable page by `Hit.page_id`; None if there is none."""

    def public_page_id(self, document: str, page: int) -> str | None:
        """Return the `Hit.page_id` of a page by the public name of its document; None if there is no such document."""

    def read_page(self, source: str, page: int, function: Callable[[PageContent], T]) -> T | None:
        """Call a function with a live page; None if there is no such page."""

    def export_pages(self, function: Callable[[PageCollection], T]) -> T:
        """Call a function with all pages of one commit; called again if the commit could not be read to the end."""

    def page_text(self, source: str, page: int) -> PageText | None:
        """Return the text of a live page."""

    def columns(self) -> dict[str, str]:
        """Return types of the columns that a filter may use."""

    def documents_with(self, column: str) -> set[str]:
        """Return paths of documents that have a value in a metadata column."""

    def facets(self, public: bool = False) -> list[Facet]:
        """Return columns with few values."""

    def info(self) -> IndexInfo:
        """Counts, sizes and settings."""

    def check(self, fix: bool = False) -> list[Damage]:
        """Verify checksums, counts and references; with `fix`, repair what is damaged."""

    # Searching.

    @property
    def searched(self) -> float:
        """Fraction of all pages that the last search of this thread covered; below 1 if parts did not answer."""

    def warm_up(self) -> None:
        """Prepare for the first search."""

    def search_visual(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the best pages by MaxSim for each of `request.vectors`."""

    def page_scores(self, query: Any, pages: Sequence[PageKey]) -> dict[PageKey, float]:
        """MaxSim scores of some pages."""

    def search_text(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the best pages by text score for each of `request.texts`."""

    def text_scores(self, query: str, pages: Sequence[PageKey]) -> dict[PageKey, float | None]:
        """Text scores of some pages: 0 without a match, None without text."""

    def snippets(self, query: str, pages: Sequence[PageKey]) -> dict[PageKey, Snippet]:
        """Return passages of some pages that match a query."""

    def matched_words(self, query: str, source: str, page: int) -> list[str]:
        """Return the words of a page that match a query, as they occur on the page."""


class StoreType(Protocol):
    """A class of stores that are addressed by a URL; registered by the scheme of the URL."""

    def open(self, url: str) -> PageStore:
        """Open an index.

        Raises:
            NotAnIndexError: there is none.
        """

    def require_target(self, url: str) -> None:
        """Raise AnchorFoldError if there is neither an index nor a place where one can be created."""

    def create(self, url: str, settings: IndexSettings) -> PageStore:
        """Create an index, or open the one that another process has created."""
