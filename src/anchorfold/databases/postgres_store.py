"""An index in a schema of a PostgreSQL database with the extension pgvector."""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from typing import Any, Self, TypeVar

from anchorfold.databases.postgres_connection import Address, Connection, database_errors
from anchorfold.databases.postgres_filter import column_sql
from anchorfold.databases.postgres_lists import update_lists
from anchorfold.databases.postgres_page import (
    VERSION_COLUMNS,
    PostgresCollection,
    PostgresPage,
    difference,
    document_version,
)
from anchorfold.databases.postgres_schema import (
    MAX_DIM,
    MIGRATIONS,
    MOVE_TO_LOST,
    TABLES,
    statements,
)
from anchorfold.databases.postgres_search import PostgresSearch
from anchorfold.errors import AnchorFoldError, NotAnIndexError, StoreError
from anchorfold.filters.values import BUILT_IN, shown
from anchorfold.storage.checking import Damage
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.info import FEW_VALUES, NO_FACETS, Facet, IndexInfo
from anchorfold.storage.page_content import PageContent
from anchorfold.storage.protocol import PageCollection
from anchorfold.storage.records import PageText
from anchorfold.storage.schema import public_page_id

T = TypeVar("T")
REPAIRED = "moved to lost_pages: index the document again"


class PostgresStore(PostgresSearch):
    """The `PageStore` of an index at a URL such as `postgresql://user@host/db?schema=reports`."""

    @classmethod
    def open(cls, url: str) -> Self:
        """Open an index.

        Raises:
            NotAnIndexError: the schema contains none.
        """
        address = Address(url)
        with database_errors(address), closing(address.connect()) as connection:
            upgrade(connection, address)
        return cls(address)

    @classmethod
    def require_target(cls, url: str) -> None:
        """Raise AnchorFoldError if there is neither an index nor a schema where one can be created."""
        address = Address(url)
        with database_errors(address), closing(address.connect()) as connection:
            if not _contains_index(connection, address):
                _require_extension(connection, address)

    @classmethod
    def create(cls, url: str, settings: IndexSettings) -> Self:
        """Create an index, or open the one that another process has created."""
        address = Address(url)
        if settings.dim > MAX_DIM:
            raise StoreError(
                f"{address.location}: pgvector stores at most {MAX_DIM:,} dimensions, the model has {settings.dim:,}: "
                "use an index directory."
            )
        with database_errors(address), closing(address.connect()) as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (zlib.crc32(address.schema.encode()),))
            if not _contains_index(connection, address):
                _create(connection, address, settings)
        return cls(address)

    @property
    def name(self) -> str:
        """The schema."""
        return self.address.schema

    # Documents and pages.

    def names(self, public: bool = False) -> dict[str, str]:
        """Return paths of all live documents and their names, or their public names."""
        column = "public_name" if public else "document"
        return dict(self.rows(f"SELECT path, {column} FROM live_documents ORDER BY version_id"))

    def public_documents(self) -> dict[str, int]:
        """Number of readable pages of all live documents by public name, sorted."""
        query = (
            "SELECT public_name, (SELECT count(*) FROM pages p WHERE p.version_id = l.version_id AND p.vectors > 0) "
            "FROM live_documents l ORDER BY public_name"
        )
        return dict(self.rows(query))

    def find_page(self, identity: str) -> tuple[str, str, int] | None:
        """Path, public name and number of a readable page by `Hit.page_id`; None if there is none."""
        document, _, number = identity.partition("-")
        if not (document.isdecimal() and number.isdecimal() and len(document) < 19 and len(number) < 10):
            return None
        query = "SELECT path, public_name, page FROM live_pages WHERE document_id = %s AND page = %s AND vectors > 0"
        return next(iter(self.rows(query, (int(document), int(number)))), None)

    def public_page_id(self, document: str, page: int) -> str | None:
        """Return the `Hit.page_id` of a page by the public name of its document; None if there is no such document."""
        if "\0" in document or any("\ud800" <= character <= "\udfff" for character in document):
            return None
        rows = self.rows("SELECT document_id FROM live_documents WHERE public_name = %s", (document,))
        return public_page_id(rows[0][0], page) if rows else None

    def read_page(self, source: str, page: int, function: Callable[[PageContent], T]) -> T | None:
        """Call a function with a live page; None if there is no such page."""
        query = (
            f"SELECT page_id, page, full_vectors, vectors, {VERSION_COLUMNS} FROM live_pages WHERE path = %s AND "
            "page = %s"
        )
        with self.connections.reading() as connection:
            row = connection.execute(query, (source, page)).fetchone()
            if row is None:
                return None
            _, settings, _ = self.read_info(connection)
            version = document_version(row[4:])
            return function(PostgresPage(connection, self.location, settings, row[0], row[1:4], version))

    def export_pages(self, function: Callable[[PageCollection], T]) -> T:
        """Call a function with all pages of one commit."""
        with self.connections.reading() as connection:
            return function(PostgresCollection(connection, self.location, self.read_info(connection)[1]))

    def page_text(self, source: str, page: int) -> PageText | None:
        """Return the text of a live page; None if it is not stored."""
        query = "SELECT text, ocr FROM live_pages WHERE path = %s AND page = %s AND text IS NOT NULL"
        return next((PageText(*row) for row in self.rows(query, (source, page))), None)

    # The index.

    def finish(self) -> None:
        """Update the statistics of the planner and the posting lists; PostgreSQL removes old rows itself."""
        if self._writer is None:
            raise StoreError(f"{self.location} is not being written.")
        with database_errors(self.address):
            self._writer.execute("ANALYZE pages, versions, documents")
            update_lists(self, self._writer)

    def facets(self, public: bool = False) -> list[Facet]:
        """Return columns with few values that distinguish documents, those given by users first."""
        result = []
        with self.connections.reading() as connection:
            types = self._columns(connection)
            for name in sorted(types, key=lambda name: name in BUILT_IN):
                if name in NO_FACETS:
                    continue
                column, parameters = column_sql(name, types, public)
                query = f"SELECT {column} AS value, count(*) FROM live_documents GROUP BY 1 LIMIT {FEW_VALUES + 2}"
                counts = dict(connection.execute(query, parameters).fetchall())
                missing = counts.pop(None, 0)
                if 0 < len(counts) <= FEW_VALUES and len(counts) + bool(missing) > 1:
                    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
                    values = {_facet_value(value, types[name]): count for value, count in ranked}
                    result.append(Facet(name, types[name], values, missing))
        return result

    def info(self) -> IndexInfo:
        """Counts, sizes and settings; `bytes` is what the tables and their indexes take in the database."""
        with self.connections.reading() as connection:
            _, s, _ = self.read_info(connection)
            execute = connection.execute
            counts = execute(
                "SELECT count(*) FILTER (WHERE vectors > 0), count(*) FILTER (WHERE vectors = 0), "
                "coalesce(sum(vectors), 0), coalesce(sum(full_vectors), 0), "
                "coalesce(sum(octet_length(provenance)), 0), coalesce(sum(octet_length(thumbnail)), 0), "
                "coalesce(sum(pg_column_size(text) + pg_column_size(words)), 0), "
                "count(DISTINCT version_id) FROM live_pages"
            ).fetchone()
            size = execute(f"SELECT {' + '.join(f'pg_total_relation_size({t!r})' for t in TABLES)}").fetchone()
            engine = execute(
                "SELECT current_setting('server_version'), extversion FROM pg_extension WHERE extname = 'vector'"
            ).fetchone()
            columns = self._columns(connection)
        assert counts is not None
        assert size is not None
        assert engine is not None
        pages, unreadable, vectors, full, provenance, thumbnails, texts, documents = map(int, counts)
        layers = s.layers or {"window": [0, 0], "steps": 0}
        return IndexInfo(
            documents=documents, pages=pages, vectors=vectors, full_vectors=full, bytes=int(size[0]),
            vector_bytes=vectors * s.coding.vector_bytes, provenance_bytes=provenance, thumbnail_bytes=thumbnails,
            text_bytes=texts, full_vector_bytes=full * s.dim * 2, unreadable_pages=unreadable, model=s.model,
            method=s.method,
            settings={
                "fingerprint": s.fingerprint, "dim": s.dim, "bits": s.bits, "window": list(layers["window"]),
                "steps": layers["steps"], "text": ("with OCR" if s.ocr else "yes") if s.text else "no",
                "engine": f"PostgreSQL {engine[0].split()[0]}, pgvector {engine[1]}", **s.options,
            },
            columns=columns,
        )  # fmt: skip

    def check(self, fix: bool = False) -> list[Damage]:
        """Verify the checksum and the counts of every page; with `fix`, move damaged pages to `lost_pages`."""
        damaged: dict[int, tuple[str, str]] = {}
        with self.connections.reading() as connection, connection.cursor("check") as cursor:
            coding = self.read_info(connection)[1].coding
            cursor.execute(
                "SELECT p.id, d.name, p.page, p.vectors, p.checksum, p.codes, p.scales, p.provenance FROM pages p JOIN "
                "versions v ON v.id = p.version_id JOIN documents d ON d.id = v.document_id"
            )
            for identity, name, page, vectors, checksum, *columns in cursor:
                if (reason := difference(coding, vectors, columns, checksum)) is not None:
                    damaged[identity] = (name, f"page {page} of {name} {reason}")
        if fix and damaged:
            with self.writing(), self.transaction() as connection:
                connection.execute(MOVE_TO_LOST, (list(damaged),))
        return [Damage("pages", problem, (name,), REPAIRED if fix else "") for name, problem in damaged.values()]


def _facet_value(value: Any, kind: str) -> Any:
    """Return a value of a facet as a Python value; the database returns numbers as decimals."""
    return shown(int(value) if kind == "integer" else float(value) if kind == "float" else value, kind)


def _contains_index(connection: Connection, address: Address) -> bool:
    """Return whether the schema contains an index; other tables of these names raise NotAnIndexError."""
    query = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(quote_ident(%s)) AND relname = ANY(%s)"
    names = {name for (name,) in connection.execute(query, (address.schema, list(TABLES)))}
    if not names:
        return False
    if "index_info" not in names:
        raise NotAnIndexError(
            f"{address.location} is not an AnchorFold index: the schema {address.schema} contains a table "
            f"{min(names)} of another application. Choose another schema (?schema=name)."
        )
    return True


def upgrade(connection: Connection, address: Address) -> None:
    """Apply the migrations that the tables of an index lack."""
    query = "SELECT schema_version, settings FROM index_info"
    applied, _ = connection.execute(query).fetchone() or (len(MIGRATIONS), {})
    if applied >= len(MIGRATIONS):
        return
    with connection.transaction():
        applied, settings = connection.execute(f"{query} FOR UPDATE").fetchone() or (len(MIGRATIONS), {})
        for statement in statements(applied, settings.get("dim", 0)):
            connection.execute(statement)
        connection.execute("UPDATE index_info SET schema_version = %s", (max(applied, len(MIGRATIONS)),))


def _require_extension(connection: Connection, address: Address) -> None:
    row = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'").fetchone()
    if row is None:
        raise AnchorFoldError(
            f"the server of {address.location} has no pgvector extension: install it on the server (package "
            "postgresql-NN-pgvector)."
        )


def _create(connection: Connection, address: Address, settings: IndexSettings) -> None:
    """Create the schema, the extension and the tables, in the transaction of the caller."""
    from psycopg import sql

    _require_extension(connection, address)
    schema = sql.Identifier(address.schema)
    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
    connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
    for statement in statements(0, settings.dim):
        connection.execute(statement)
    connection.execute(
        "INSERT INTO index_info (id, schema_version, index_id, token, settings) VALUES (1, %s, %s, %s, %s)",
        (len(MIGRATIONS), secrets.token_hex(16), secrets.token_hex(8), json.dumps(asdict(settings))),
    )
