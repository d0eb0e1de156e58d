"""The store of an index in a Qdrant collection."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self, TypeVar

from anchorfold.databases.qdrant_engine import QdrantAddress, QdrantEngine, all_of, matches, models
from anchorfold.databases.qdrant_head import Head, HeadPoint
from anchorfold.databases.qdrant_info import check_collection, collection_info, count_facets
from anchorfold.databases.qdrant_layout import create_collection, page_version
from anchorfold.databases.qdrant_page import QdrantCollection, QdrantPage
from anchorfold.databases.qdrant_records import is_empty, readable_pages
from anchorfold.databases.qdrant_search import QdrantSearch
from anchorfold.errors import NotAnIndexError, StoreError
from anchorfold.storage.checking import Damage
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.info import Facet, IndexInfo
from anchorfold.storage.page_content import PageContent
from anchorfold.storage.protocol import PageCollection
from anchorfold.storage.records import PageText
from anchorfold.storage.schema import public_page_id

T = TypeVar("T")
EXPORTS = 3  # attempts to read all pages of one commit


class QdrantStore(QdrantSearch):
    """The `PageStore` of an index in a Qdrant collection."""

    # Creating and deleting.

    @classmethod
    def open(cls, url: str) -> Self:
        """Open an index.

        Raises:
            NotAnIndexError: there is none.
        """
        engine = QdrantEngine(QdrantAddress.parse(url))
        if engine.is_local and not (Path(engine.address.folder) / "meta.json").is_file():
            raise NotAnIndexError(f"{engine.address.location} does not exist: create it with `anchorfold index`.")
        return cls(engine)

    @classmethod
    def require_target(cls, url: str) -> None:
        """Raise AnchorFoldError if there is neither an index nor a place where one can be created."""
        engine = QdrantEngine(QdrantAddress.parse(url))
        engine.require_version()
        if _exists(engine):
            HeadPoint(engine).read()

    @classmethod
    def create(cls, url: str, settings: IndexSettings) -> Self:
        """Create an index, or open the one that another process has created.

        The URL names an alias, so that an index can be replaced by another one at once.
        """
        cls.require_target(url)
        engine = QdrantEngine(QdrantAddress.parse(url))
        if not _exists(engine):
            name, alias = f"{engine.address.collection}-{secrets.token_hex(4)}", engine.address.collection
            create_collection(engine, name, settings)
            physical = QdrantAddress(engine.address.location, name, engine.address.server, engine.address.folder, engine.address.api_key)  # fmt: skip  # noqa: E501
            HeadPoint(QdrantEngine(physical)).create(Head(secrets.token_hex(16), asdict(settings)))
            created = models.CreateAlias(collection_name=name, alias_name=alias)
            with engine.client() as client:
                if not _exists(engine):
                    client.update_collection_aliases([models.CreateAliasOperation(create_alias=created)])
                if engine.real_name() != name:  # another process was faster
                    client.delete_collection(name)
        return cls(engine)

    def delete(self) -> None:
        """Delete the collection and its alias."""
        name, alias = self.engine.real_name(), self.engine.address.collection
        with self.engine.client() as client:
            if name != alias:
                removed = models.DeleteAlias(alias_name=alias)
                client.update_collection_aliases([models.DeleteAliasOperation(delete_alias=removed)])
            client.delete_collection(name)

    @property
    def name(self) -> str:
        """Name of the collection or alias."""
        return self.engine.address.collection

    def warm_up(self) -> None:
        """Connect."""
        self.refresh()

    def finish(self) -> None:
        """Do nothing: the server optimizes its segments itself."""

    def check(self, fix: bool = False) -> list[Damage]:
        """Compare pages with their documents; with `fix`, repair them. Other writers are excluded."""
        with self.writing():
            return check_collection(self, fix)

    def info(self) -> IndexInfo:
        """Counts, sizes and settings."""
        live, head = self.live_documents()
        return collection_info(self.engine, self.settings, live, head)

    def facets(self, public: bool = False) -> list[Facet]:
        """Return columns with few values."""
        live, head = self.live_documents()
        return count_facets(live, head.columns, public)

    # Documents.

    def names(self, public: bool = False) -> dict[str, str]:
        """Return paths of all live documents and their names, or their public names."""
        live, _ = self.live_documents()
        return {source: record.public_name if public else record.document for source, (record, _) in live.items()}

    def public_documents(self) -> dict[str, int]:
        """Number of readable pages of all live documents by public name, sorted."""
        live, head = self.live_documents()
        counts = self.engine.facet("version", all_of(*readable_pages()), len(live) + len(head.hidden) + 500)
        return dict(sorted((record.public_name, counts.get(v.version, 0)) for record, v in live.values()))

    # Pages.

    def find_page(self, identity: str) -> tuple[str, str, int] | None:
        """Path, public name and number of a readable page by `Hit.page_id`; None if there is none."""
        document, _, number = identity.partition("-")
        if not (document.isdecimal() and number.isdecimal() and max(len(document), len(number)) < 19):
            return None
        head = self.head.read()
        conditions = [matches("document_id", int(document)), matches("page", int(number))]
        hidden = [matches("version", head.hidden)] if head.hidden else []
        for point in self.engine.scroll(all_of(*readable_pages(), *conditions, none_of=hidden), batch=10):
            version = page_version(point.payload)
            return version.source, version.public_name, int(number)
        return None

    def public_page_id(self, document: str, page: int) -> str | None:
        """Return the `Hit.page_id` of a page by the public name of its document; None if there is no such document."""
        live, _ = self.live_documents()
        ids = {record.public_name: record.document_id for record, _ in live.values()}
        return public_page_id(ids[document], page) if document in ids else None

    def _point(self, source: str, page: int, fields: Any = True) -> Any:
        for _ in range(EXPORTS):  # the document may be replaced between both requests
            identities = list(self._point_ids([(source, page)]))
            if points := self.engine.retrieve(identities, fields) if identities else []:
                return points[0]
        return None

    def read_page(self, source: str, page: int, function: Callable[[PageContent], T]) -> T | None:
        """Call a function with a live page; None if there is no such page."""
        for _ in range(EXPORTS):
            point = self._point(source, page)
            if point is None:
                return None
            with suppress(StoreError):
                return function(QdrantPage(self.engine, self.settings, point))
        return function(QdrantPage(self.engine, self.settings, point))

    def page_text(self, source: str, page: int) -> PageText | None:
        """Return the text of a live page."""
        point = self._point(source, page, ["text", "ocr"])
        if point is None or point.payload.get("text") is None:
            return None
        return PageText(point.payload["text"], point.payload["ocr"])

    def export_pages(self, function: Callable[[PageCollection], T]) -> T:
        """Call a function with all pages of one commit; again if documents were replaced in the meantime."""
        for _ in range(EXPORTS):
            head = self.head.read()
            result = function(QdrantCollection(self.engine, self.settings, head))
            if self.head.read().changed_since(head) == set():
                return result
        raise StoreError(f"{self.location} was changed while it was exported: export it again when nothing is written.")

    def incomplete_pages(self) -> dict[str, tuple[str, list[int]]]:
        """Return digest and page numbers, by path, of readable live pages without stored text or thumbnail."""
        head = self.head.read()
        if head.text_complete:
            return {}
        missing: list[Any] = [is_empty("text")]
        if self.settings.ocr:
            missing.append(all_of(matches("text_bytes", 0), matches("ocr", False)))
        if self.settings.thumbnails:
            missing.append(is_empty("thumbnail"))
        hidden = [matches("version", head.hidden)] if head.hidden else []
        condition = all_of(*readable_pages(), models.Filter(should=missing), none_of=hidden)
        incomplete: dict[str, tuple[str, list[int]]] = {}
        for point in self.engine.scroll(condition, ["source", "digest", "page"]):
            incomplete.setdefault(point.payload["source"], (point.payload["digest"], []))[1].append(
                point.payload["page"]
            )
        return {source: (digest, sorted(pages)) for source, (digest, pages) in incomplete.items()}


def _exists(engine: QdrantEngine) -> bool:
    """Return whether there is a collection or an alias."""
    with engine.client() as client:
        names = {collection.name for collection in client.get_collections().collections}
        return engine.address.collection in names or engine.real_name() != engine.address.collection
