"""The embedded store: SQLite and vector files in a folder, searched in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from anchorfold.errors import AnchorFoldError
from anchorfold.index.candidate_files import update_lists
from anchorfold.index.hits import EVERYTHING, Hit, PageKey, Selection
from anchorfold.index.scan import Scanner
from anchorfold.index.searching import PageSearch, page_hits, page_ids, selected_versions, text_condition
from anchorfold.index.store import text_search
from anchorfold.index.store.checking import Damage, check
from anchorfold.index.store.facets import Facet, facets
from anchorfold.index.store.filter_sql import protected
from anchorfold.index.store.info import IndexInfo, folder_bytes, index_info
from anchorfold.index.store.records import PageText, Snippet
from anchorfold.index.store.schema import PAGE_BITS, page_id, public_page_id
from anchorfold.index.store.snapshot import Snapshot, StoredPage
from anchorfold.index.store.sqlite_store import SqliteStore
from anchorfold.index.words import match_expression

T = TypeVar("T")


class EmbeddedStore(SqliteStore):
    """The `PageStore` of an index in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pages: PageSearch = PageSearch(self)

    @property
    def location(self) -> str:
        """The folder, for messages."""
        return str(self.folder)

    # Searching.

    def search(
        self,
        queries: Sequence[Any],
        top: int,
        selection: Selection = EVERYTHING,
        exact: bool | None = None,
        candidates: int | None = None,
    ) -> list[list[Hit]]:
        """The best pages by MaxSim for each query, `(tokens, d)`."""
        return self.pages.hits(queries, top, selection, exact, candidates)

    def page_scores(self, query: Any, pages: Sequence[PageKey]) -> dict[PageKey, float]:
        """MaxSim scores of some pages; pages that no longer exist are left out."""
        return self.pages.scores(query, pages)

    def require_text(self) -> None:
        """Raise an error if the index stores no text."""
        if not self.settings.text:
            raise AnchorFoldError(
                f"{self.folder} stores no text: search it with --mode visual, or add the text with `anchorfold index "
                f"DOCUMENTS --to {self.folder} --text`, which encodes no page again."
            )

    def search_text(self, query: str, top: int, selection: Selection = EVERYTHING) -> list[Hit]:
        """The best pages by BM25."""
        self.require_text()
        expression = match_expression(query)

        def search(snapshot: Snapshot) -> list[Hit]:
            condition = text_condition(snapshot, selection)
            if not expression:
                return []
            with protected(snapshot.connection, text=True):
                best = text_search.best_matches(snapshot, expression, top, condition)
            hits = page_hits(snapshot, [identity for identity, _ in best], selection.public)
            passages = text_search.snippets(snapshot, expression, [identity for identity, _ in best])
            return [
                replace(hits[i], score=score, text=score, snippet=passages[i].text, matches=passages[i].matches)
                for i, score in best
            ]

        return self.read(search)

    def no_match_reason(self, query: str, where: str | None = None) -> str:
        """Why a text search returned nothing."""
        expression = match_expression(query)
        if not expression:
            return "the query contains no word"
        if where is not None and self.search_text(query, 1):
            return "no page that the filter allows contains these words"
        return "no page contains these words"

    def search_anything(self, selection: Selection) -> bool:
        """Whether a selection contains any page with vectors."""

        def find(snapshot: Snapshot, scanner: Scanner) -> bool:
            allowed = self.pages.allowed(snapshot, scanner.live, selection)
            return bool((scanner.live.allowed if allowed is None else allowed & scanner.live.allowed).any())

        return self.pages.with_scanner(find)

    def text_scores(self, query: str, pages: Sequence[PageKey]) -> dict[PageKey, float | None]:
        """BM25 scores of some pages: 0 without a match, None without text; pages that no longer exist are left out."""
        expression = match_expression(query)

        def score(snapshot: Snapshot) -> dict[PageKey, float | None]:
            ids = page_ids(snapshot, pages)
            found = text_search.scores_of(snapshot, expression, list(ids.values())) if expression else {}
            readable = text_search.with_text(snapshot, list(ids.values()))
            return {key: found.get(i, 0.0) if i in readable else None for key, i in ids.items()}

        return self.read(score)

    def snippets(self, query: str, pages: Sequence[PageKey]) -> dict[PageKey, Snippet]:
        """Passages of some pages that match a query."""
        expression = match_expression(query)

        def find(snapshot: Snapshot) -> dict[PageKey, Snippet]:
            ids = {identity: key for key, identity in page_ids(snapshot, pages).items()}
            return {ids[i]: s for i, s in text_search.snippets(snapshot, expression, list(ids)).items()}

        return self.read(find) if expression and pages else {}

    def matched_words(self, query: str, source: str, page: int) -> list[str]:
        """The words of a page that match a query, as they occur on the page."""
        expression = match_expression(query)

        def find(snapshot: Snapshot) -> list[str]:
            ids = page_ids(snapshot, [(source, page)])
            return [w for i in ids.values() for w in text_search.matched_words(snapshot, expression, i)]

        return self.read(find) if expression and self.settings.text else []

    # Documents and pages.

    def names(self) -> dict[str, str]:
        """Paths and names of all live documents."""
        return self.read(Snapshot.names)

    def read_page(self, source: str, page: int, function: Callable[[StoredPage], T]) -> T | None:
        """Call a function with a live page; None if there is no such page."""

        def call(snapshot: Snapshot) -> T | None:
            stored = snapshot.page(source, page)
            return None if stored is None else function(stored)

        return self.read(call)

    def page_text(self, source: str, page: int) -> PageText | None:
        """The text of a live page; None if it is not stored."""

        def find(snapshot: Snapshot) -> PageText | None:
            version = snapshot.live_version(source)
            return None if version is None else snapshot.text(page_id(version.id, page))

        return self.read(find)

    def find_page(self, identity: str) -> tuple[str, str, int] | None:
        """Path, public name and number of a page by `Hit.page_id`; None if there is none."""
        document, _, number = identity.partition("-")
        if not (document.isdecimal() and number.isdecimal() and max(len(document), len(number)) < 19):
            return None  # among others numbers that SQLite cannot represent
        query = "SELECT path, public_name, page FROM live_pages WHERE document_id = ? AND page = ? AND vectors > 0"

        def find(snapshot: Snapshot) -> tuple[str, str, int] | None:
            row: tuple[str, str, int] | None = snapshot.connection.execute(
                query, (int(document), int(number))
            ).fetchone()
            return row

        return self.read(find)

    def public_page_id(self, document: str, page: int) -> str | None:
        """The `Hit.page_id` of a page by the public name of its document; None if there is none."""
        query = "SELECT document_id FROM live_documents WHERE public_name = CAST(? AS TEXT)"
        name = document.encode(errors="surrogatepass")  # a client may send surrogates, which no name contains
        row = self.read(lambda snapshot: snapshot.connection.execute(query, (name,)).fetchone())
        return None if row is None else public_page_id(row[0], page)

    def has_public_document(self, document: str) -> bool:
        """Whether a public name or pattern matches any live document."""
        return self.read(lambda snapshot: bool(selected_versions(snapshot, document, public=True)))

    def public_documents(self) -> dict[str, tuple[str, int]]:
        """Path and number of readable pages of all live documents by public name, sorted."""
        pages = (
            f"SELECT count(*) FROM pages p WHERE p.id >= l.version_id << {PAGE_BITS} "
            f"AND p.id < (l.version_id + 1) << {PAGE_BITS} AND p.vectors > 0"
        )
        query = f"SELECT public_name, path, ({pages}) FROM live_documents l ORDER BY public_name"
        return self.read(
            lambda snapshot: {name: (path, count) for name, path, count in snapshot.connection.execute(query)}
        )

    def export_pages(self, function: Callable[[Snapshot], T]) -> T:
        """Call an exporter with one commit."""
        return self.read(function)

    def incomplete_pages(self) -> dict[str, tuple[str, list[int]]]:
        """Digest and page numbers, by path, of readable live pages that lack a text or a thumbnail.

        With OCR, pages whose text is empty and was not read by OCR count as well.
        """
        text = "t.page_id IS NULL" + (" OR (t.text = '' AND NOT t.ocr)" if self.settings.ocr else "")
        image = " OR i.thumbnail IS NULL" if self.settings.thumbnails else ""
        query = (
            "SELECT d.path, v.digest, p.number FROM pages p JOIN versions v ON v.id = p.version_id "
            "JOIN documents d ON d.id = v.document_id LEFT JOIN texts t ON t.page_id = p.id "
            f"LEFT JOIN page_payloads i ON i.page_id = p.id WHERE v.live AND p.vectors > 0 AND ({text}{image})"
        )

        def find(snapshot: Snapshot) -> dict[str, tuple[str, list[int]]]:
            found: dict[str, tuple[str, list[int]]] = {}
            for path, digest, page in () if snapshot.text_complete else snapshot.connection.execute(query):
                found.setdefault(path, (digest, []))[1].append(page)
            return found

        return self.read(find)

    # Metadata.

    def check_where(self, where: str) -> None:
        """Raise FilterError for a filter that is wrong."""
        from anchorfold.index.filters.where import parse_where

        parse_where(where, self.columns())

    def columns(self) -> dict[str, str]:
        """Types of the columns that a filter may use."""
        return self.read(lambda snapshot: snapshot.columns)

    def facets(self, public: bool = False) -> list[Facet]:
        """Columns with few values."""
        return self.read(lambda snapshot: facets(snapshot, public))

    def documents_with(self, column: str) -> set[str]:
        """Paths of documents that have a value in a metadata column."""
        query = "SELECT documents.path FROM documents, json_each(documents.metadata) WHERE key = ?"
        return self.read(lambda snapshot: {path for (path,) in snapshot.connection.execute(query, (column,))})

    # The index.

    def finish(self) -> None:
        """Maintenance at the end of a run: merge vector files and build posting lists."""
        self.tidy()
        update_lists(self)

    def info(self) -> IndexInfo:
        """Counts, sizes and settings."""
        # Counted after the connection is closed: SQLite has temporary files while it is open.
        return replace(self.read(index_info), bytes=folder_bytes(self.folder))


def check_index(folder: Path, fix: bool = False) -> list[Damage]:
    """Verify an index; with `fix`, repair it."""
    if not fix:
        return check(folder)
    from anchorfold.index.store.repairing import repair

    return repair(folder)
