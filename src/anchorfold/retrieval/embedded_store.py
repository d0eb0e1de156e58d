"""The embedded store: SQLite and vector files in a folder, searched in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from anchorfold.retrieval.candidate_files import update_lists
from anchorfold.retrieval.derived import require_text
from anchorfold.retrieval.visual_search import PageSearch, page_hits, page_ids, text_condition
from anchorfold.storage import text_search
from anchorfold.storage.checking import Damage, check
from anchorfold.storage.document_store import DocumentStore
from anchorfold.storage.file_errors import folder_bytes
from anchorfold.storage.filter_sql import SqlCondition, protected
from anchorfold.storage.hits import Hit, PageKey, SearchRequest
from anchorfold.storage.info import Facet, IndexInfo, facets, index_info
from anchorfold.storage.records import PageText, Snippet
from anchorfold.storage.schema import PAGE_BITS, page_id, public_page_id
from anchorfold.storage.snapshot import Snapshot, StoredPage
from anchorfold.storage.text_search import match_expression

T = TypeVar("T")


class EmbeddedStore(DocumentStore):
    """The `PageStore` of an index in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pages: PageSearch = PageSearch(self)

    @property
    def location(self) -> str:
        """Folder of the index, for messages."""
        return str(self.folder)

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.folder.resolve().name

    # Searching.

    @property
    def searched(self) -> float:
        """Fraction of all pages that the last search of this thread covered."""
        return self.pages.searched

    def warm_up(self) -> None:
        """Open the vector files."""
        self.pages.newest_scanner()

    def search_visual(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the best pages by MaxSim for each of `request.vectors`."""
        return self.pages.hits(request)

    def page_scores(self, query: Any, pages: Sequence[PageKey]) -> dict[PageKey, float]:
        """Return the MaxSim scores of the given pages; deleted pages are omitted."""
        return self.pages.scores(query, pages)

    def search_text(self, request: SearchRequest) -> list[list[Hit]]:
        """Return the best pages by BM25 for each of `request.texts`."""
        require_text(self)

        def search(snapshot: Snapshot) -> list[list[Hit]]:
            condition = text_condition(snapshot, request)
            return [self._text_hits(snapshot, match_expression(text), condition, request) for text in request.texts]

        return self.read(search)

    @staticmethod
    def _text_hits(snapshot: Snapshot, expression: str, condition: SqlCondition, request: SearchRequest) -> list[Hit]:
        if not expression:
            return []
        with protected(snapshot.connection, text=True):
            best = text_search.best_matches(snapshot, expression, request.top_k, condition)
        hits = page_hits(snapshot, [identity for identity, _ in best], request.public)
        passages = text_search.snippets(snapshot, expression, [identity for identity, _ in best])
        return [
            replace(hits[i], score=score, text=score, snippet=passages[i].text, matches=passages[i].matches)
            for i, score in best
        ]

    def text_scores(self, query: str, pages: Sequence[PageKey]) -> dict[PageKey, float | None]:
        """Return the BM25 scores of pages: 0 without a match, None without text; deleted pages are omitted."""
        expression = match_expression(query)

        def score(snapshot: Snapshot) -> dict[PageKey, float | None]:
            ids = page_ids(snapshot, pages)
            scores = text_search.scores_of(snapshot, expression, list(ids.values())) if expression else {}
            readable = text_search.with_text(snapshot, list(ids.values()))
            return {key: scores.get(i, 0.0) if i in readable else None for key, i in ids.items()}

        return self.read(score)

    def snippets(self, query: str, pages: Sequence[PageKey]) -> dict[PageKey, Snippet]:
        """Return the passages of the given pages that match a query."""
        expression = match_expression(query)

        def find(snapshot: Snapshot) -> dict[PageKey, Snippet]:
            ids = {identity: key for key, identity in page_ids(snapshot, pages).items()}
            return {ids[i]: s for i, s in text_search.snippets(snapshot, expression, list(ids)).items()}

        return self.read(find) if expression and pages else {}

    def matched_words(self, query: str, source: str, page: int) -> list[str]:
        """Return the words of a page that match a query, as they occur on the page."""
        expression = match_expression(query)

        def find(snapshot: Snapshot) -> list[str]:
            ids = page_ids(snapshot, [(source, page)])
            return [w for i in ids.values() for w in text_search.matched_words(snapshot, expression, i)]

        return self.read(find) if expression and self.settings.text else []

    # Documents and pages.

    def names(self, public: bool = False) -> dict[str, str]:
        """Return the names of all live documents by path, or their public names."""
        query = f"SELECT path, {'public_name' if public else 'document'} FROM live_documents ORDER BY version_id"
        return self.read(lambda snapshot: dict(snapshot.connection.execute(query)))

    def read_page(self, source: str, page: int, function: Callable[[StoredPage], T]) -> T | None:
        """Return the result of a function of a live page; None if there is no such page."""

        def call(snapshot: Snapshot) -> T | None:
            stored = snapshot.page(source, page)
            return None if stored is None else function(stored)

        return self.read(call)

    def page_text(self, source: str, page: int) -> PageText | None:
        """Return the text of a live page; None if it is not stored."""

        def find(snapshot: Snapshot) -> PageText | None:
            version = snapshot.live_version(source)
            return None if version is None else snapshot.text(page_id(version.id, page))

        return self.read(find)

    def find_page(self, identity: str) -> tuple[str, str, int] | None:
        """Return path, public name and number of a page by `Hit.page_id`; None if there is none."""
        document, _, number = identity.partition("-")
        if not (document.isdecimal() and number.isdecimal() and max(len(document), len(number)) < 19):
            return None  # this includes integers that SQLite cannot represent
        query = "SELECT path, public_name, page FROM live_pages WHERE document_id = ? AND page = ? AND vectors > 0"

        def find(snapshot: Snapshot) -> tuple[str, str, int] | None:
            row: tuple[str, str, int] | None = snapshot.connection.execute(
                query, (int(document), int(number))
            ).fetchone()
            return row

        return self.read(find)

    def public_page_id(self, document: str, page: int) -> str | None:
        """Return the `Hit.page_id` of a page by the public name of its document; None if there is none."""
        query = "SELECT document_id FROM live_documents WHERE public_name = CAST(? AS TEXT)"
        name = document.encode(errors="surrogatepass")  # a client may send surrogates, which no name contains
        row = self.read(lambda snapshot: snapshot.connection.execute(query, (name,)).fetchone())
        return None if row is None else public_page_id(row[0], page)

    def public_documents(self) -> dict[str, int]:
        """Return the number of readable pages of all live documents by public name, sorted."""
        pages = (
            f"SELECT count(*) FROM pages p WHERE p.id >= l.version_id << {PAGE_BITS} "
            f"AND p.id < (l.version_id + 1) << {PAGE_BITS} AND p.vectors > 0"
        )
        query = f"SELECT public_name, ({pages}) FROM live_documents l ORDER BY public_name"
        return self.read(lambda snapshot: dict(snapshot.connection.execute(query)))

    def export_pages(self, function: Callable[[Snapshot], T]) -> T:
        """Call an exporter with one commit."""
        return self.read(function)

    def incomplete_pages(self) -> dict[str, tuple[str, list[int]]]:
        """Return digest and page numbers, by path, of readable live pages without stored text or thumbnail.

        With OCR, pages with an empty text that was not read by OCR are included.
        """
        text = "t.page_id IS NULL" + (" OR (t.text = '' AND NOT t.ocr)" if self.settings.ocr else "")
        image = " OR i.thumbnail IS NULL" if self.settings.thumbnails else ""
        query = (
            "SELECT d.path, v.digest, p.number FROM pages p JOIN versions v ON v.id = p.version_id "
            "JOIN documents d ON d.id = v.document_id LEFT JOIN texts t ON t.page_id = p.id "
            f"LEFT JOIN page_payloads i ON i.page_id = p.id WHERE v.live AND p.vectors > 0 AND ({text}{image})"
        )

        def find(snapshot: Snapshot) -> dict[str, tuple[str, list[int]]]:
            incomplete: dict[str, tuple[str, list[int]]] = {}
            for path, digest, page in () if snapshot.text_complete else snapshot.connection.execute(query):
                incomplete.setdefault(path, (digest, []))[1].append(page)
            return incomplete

        return self.read(find)

    # Metadata.

    def columns(self) -> dict[str, str]:
        """Return the types of the columns that filters may use."""
        return self.read(lambda snapshot: snapshot.columns)

    def facets(self, public: bool = False) -> list[Facet]:
        """Return the columns with few distinct values."""
        return self.read(lambda snapshot: facets(snapshot, public))

    def documents_with(self, column: str) -> set[str]:
        """Return the paths of documents that have a value in a metadata column."""
        query = "SELECT documents.path FROM documents, json_each(documents.metadata) WHERE key = ?"
        return self.read(lambda snapshot: {path for (path,) in snapshot.connection.execute(query, (column,))})

    # The index.

    def check(self, fix: bool = False) -> list[Damage]:
        """Verify the index; with `fix`, repair it."""
        return check_index(self.folder, fix)

    def delete(self) -> None:
        """Delete the folder with everything in it."""
        shutil.rmtree(self.folder)

    def finish(self) -> None:
        """Merge vector files and build posting lists at the end of a run."""
        self.tidy()
        update_lists(self)

    def info(self) -> IndexInfo:
        """Return counts, sizes and settings."""
        # Measured after the connection is closed, because SQLite creates temporary files while it is open.
        return replace(self.read(index_info), bytes=folder_bytes(self.folder))


def check_index(folder: Path, fix: bool = False) -> list[Damage]:
    """Verify an index; with `fix`, repair it."""
    if not fix:
        return check(folder)
    from anchorfold.storage.repair import repair

    return repair(folder)
