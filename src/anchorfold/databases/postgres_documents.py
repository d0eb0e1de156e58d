"""Documents of an index in PostgreSQL: their state, and commits that add, replace, move and remove them."""

from __future__ import annotations

import json
import secrets
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from anchorfold.databases.passages import folded_words
from anchorfold.databases.postgres_connection import Address, Connection, Connections, database_errors, not_there
from anchorfold.databases.postgres_lock import writer_connection
from anchorfold.databases.postgres_schema import MIGRATIONS, TABLES, VIEWS
from anchorfold.errors import MismatchError
from anchorfold.filters.values import Plain
from anchorfold.retrieval.candidate_vectors import candidate_vector
from anchorfold.storage.filter_sql import folder_of, kind_of
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.provenance import pack
from anchorfold.storage.records import (
    DocumentState,
    PageRow,
    PageText,
    Version,
    document_states,
    merged_metadata,
    public_name,
)

MAX_POSITION = 16_383  # of a word in a tsvector
MAX_POSITIONS = 250  # per word
MAX_WORD = 500  # characters
COLUMNS = (
    "version_id, page, vectors, full_vectors, codes, scales, provenance, checksum, thumbnail, problem, text, ocr, "
    "words, word_count, candidate"
)
VERSION_OF = "SELECT v.id FROM versions v JOIN documents d ON d.id = v.document_id WHERE d.path = %s"


class PostgresDocuments:
    """The documents of an index in a schema."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.connections = Connections(address)
        self._writer: Connection | None = None
        self.settings: IndexSettings
        self.refresh()

    @property
    def location(self) -> str:
        """The URL without password."""
        return self.address.location

    # Reading.

    def read_info(self, connection: Connection) -> tuple[Version, IndexSettings, bool]:
        """Return the version, the settings and whether all text is stored, of the commit that a connection reads."""
        row = connection.execute(
            "SELECT index_id, commits, token, settings, text_complete, schema_version FROM index_info"
        ).fetchone()
        if row is None:
            raise not_there(self.location)
        if row[5] != len(MIGRATIONS):
            raise MismatchError(
                f"{self.location} has tables of version {row[5]}, this version reads {len(MIGRATIONS)}: upgrade "
                "anchorfold."
            )
        return Version(row[0], row[1], row[2]), IndexSettings.from_dict(row[3]), row[4]

    @property
    def version(self) -> Version:
        """The newest commit."""
        with self.connections.reading() as connection:
            return self.read_info(connection)[0]

    def refresh(self) -> Version:
        """Re-read the settings."""
        with self.connections.reading() as connection:
            version, settings, _ = self.read_info(connection)
        if getattr(self, "settings", None) != settings:
            self.settings = settings
        return version

    def rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query on the newest commit."""
        with self.connections.reading() as connection:
            return connection.execute(query, parameters).fetchall()

    def documents(self) -> dict[str, DocumentState]:
        """Return the state of every document by path, live or staged, with numbers of stored pages."""
        return document_states(
            self.rows(
                "SELECT d.path, d.name, v.live, v.digest, (SELECT count(*) FROM pages p WHERE p.version_id = v.id), "
                "v.size, v.modified, v.pages FROM versions v JOIN documents d ON d.id = v.document_id"
            )
        )

    def stored_pages(self, sources: Sequence[str]) -> dict[str, dict[str, set[int]]]:
        """Return numbers of stored pages by path and digest."""
        stored: dict[str, dict[str, set[int]]] = {}
        for path, digest, numbers in self.rows(
            "SELECT d.path, v.digest, array_agg(p.page) FILTER (WHERE p.page IS NOT NULL) FROM documents d "
            "JOIN versions v ON v.document_id = d.id LEFT JOIN pages p ON p.version_id = v.id "
            "WHERE d.path = ANY(%s) GROUP BY 1, 2",
            (list(sources),),
        ):
            stored.setdefault(path, {})[digest] = set(numbers or ())
        return stored

    def incomplete_pages(self) -> dict[str, tuple[str, list[int]]]:
        """Return digest and page numbers, by path, of readable live pages without stored text or thumbnail."""
        text = "text IS NULL" + (" OR (text = '' AND NOT ocr)" if self.settings.ocr else "")
        image = " OR thumbnail IS NULL" if self.settings.thumbnails else ""
        incomplete: dict[str, tuple[str, list[int]]] = {}
        for path, digest, page in self.rows(
            "SELECT path, digest, page FROM live_pages WHERE (SELECT NOT text_complete FROM index_info) AND "
            f"vectors > 0 AND ({text}{image}) ORDER BY page_id"
        ):
            incomplete.setdefault(path, (digest, []))[1].append(page)
        return incomplete

    # Writing.

    @contextmanager
    def writing(
        self, wait: float = -1, waiting: Callable[[str], None] | None = None, stop: Callable[[], bool] | None = None,
        sources: Collection[str] | None = None,
    ) -> Iterator[None]:  # fmt: skip
        """Exclude other writers, of all documents or of `sources`; see `PageStore.writing`."""
        index_id = self.refresh().index_id
        with writer_connection(self.address, index_id, wait, waiting, stop, sources) as connection:
            self.refresh()
            before, self._writer = self._writer, connection
            try:
                yield
            finally:
                self._writer = before

    @contextmanager
    def transaction(self, first: bool = False) -> Iterator[Connection]:
        """One commit; with `first`, it is serialized with the commits of other writers from its beginning."""
        connection = self._writer
        if connection is None:
            raise RuntimeError("a write needs the writer lock: use `with store.writing():`")
        seal = "UPDATE index_info SET commits = commits + 1, token = %s RETURNING id"
        with database_errors(self.address), connection.transaction():
            if first:
                connection.execute("SELECT 1 FROM index_info FOR UPDATE")
            yield connection
            if connection.execute(seal, (secrets.token_hex(8),)).fetchone() is None:
                raise not_there(self.location)

    def append(self, rows: Sequence[PageRow]) -> None:
        """Add pages in one commit; documents that are new are inserted with them."""
        if not rows:
            return
        with self.transaction() as connection:
            ids = self._version_ids(connection, rows)
            connection.execute("UPDATE versions SET state = DEFAULT WHERE id = ANY(%s)", (list(set(ids)),))
            with connection.cursor() as cursor, cursor.copy(f"COPY pages ({COLUMNS}) FROM STDIN") as copy:
                for identity, row in zip(ids, rows, strict=True):
                    copy.write_row((identity, *page_values(row, self.settings)))

    def _version_ids(self, connection: Connection, rows: Sequence[PageRow]) -> list[int]:
        """Return the version id of each page; documents and versions that are new are inserted."""
        known: dict[tuple[str, str], int] = {}
        for row in rows:
            if (row.source, row.digest) not in known:
                document = _document_id(connection, row)
                connection.execute(
                    "INSERT INTO versions (document_id, digest, size, modified, pages, live, file_metadata) "
                    "VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (document_id, digest) DO NOTHING",
                    (document, row.digest, row.size, row.modified, row.pages, row.live, as_jsonb(row.file_metadata)),
                )
                version = connection.execute(
                    "SELECT id FROM versions WHERE document_id = %s AND digest = %s", (document, row.digest)
                ).fetchone()
                assert version is not None
                known[row.source, row.digest] = version[0]
        return [known[row.source, row.digest] for row in rows]

    def promote(self, source: str, digest: str, size: int, modified: int) -> None:
        """Replace a document by its staged version in one commit; size and time are those of the file now."""
        with self.transaction() as connection:
            execute = connection.execute
            execute(f"DELETE FROM versions WHERE id IN ({VERSION_OF}) AND digest != %s", (source, digest))
            execute(
                f"UPDATE versions SET live = true, size = %s, modified = %s WHERE id IN ({VERSION_OF})",
                (size, modified, source),
            )
            execute(
                "UPDATE index_info SET text_complete = false WHERE text_complete AND EXISTS (SELECT 1 FROM pages WHERE "
                f"version_id IN ({VERSION_OF}) AND vectors > 0 AND text IS NULL)",
                (source,),
            )

    def _execute(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement for some rows in one commit; none without rows."""
        if rows := list(rows):
            with self.transaction() as connection, connection.cursor() as cursor:
                cursor.executemany(statement, rows)

    def touch(self, source: str, size: int, modified: int) -> None:
        """Store another size and time of a document with the same content."""
        statement = f"UPDATE versions SET size = %s, modified = %s WHERE live AND id IN ({VERSION_OF})"
        self._execute(statement, [(size, modified, source)])

    def move(self, sources: Mapping[str, str]) -> None:
        """Change paths of documents, from old to new, in one commit."""
        self._execute("UPDATE documents SET path = %s WHERE path = %s", [(new, old) for old, new in sources.items()])

    def remove(self, sources: Iterable[str]) -> None:
        """Delete documents in one commit."""
        self._delete_versions(sources, "true")

    def drop_staged(self, sources: Iterable[str]) -> None:
        """Delete versions of documents that never became live, in one commit."""
        self._delete_versions(sources, "NOT live")

    def _delete_versions(self, sources: Iterable[str], condition: str) -> None:
        """Delete versions for which a condition holds, and documents that have no other."""
        if paths := sorted(set(sources)):
            of_paths = "SELECT id FROM documents WHERE path = ANY(%s)"
            with self.transaction() as connection:
                connection.execute(f"DELETE FROM versions WHERE {condition} AND document_id IN ({of_paths})", (paths,))
                connection.execute(
                    "DELETE FROM documents d WHERE path = ANY(%s) AND NOT EXISTS (SELECT 1 FROM versions v WHERE "
                    "v.document_id = d.id)",
                    (paths,),
                )

    def set_metadata(self, values: Mapping[str, Mapping[str, Plain | None]], types: Mapping[str, str]) -> int:
        """Set metadata values by path and column in one commit; None removes a value."""
        if not values and not types:
            return 0
        with self.transaction(first=True) as connection:
            execute = connection.execute
            changes = {}
            for path, stored in execute("SELECT path, metadata FROM documents WHERE path = ANY(%s)", (list(values),)):
                after = merged_metadata(stored, values[path])
                if json.dumps(after, sort_keys=True) != json.dumps(stored, sort_keys=True):
                    changes[path] = as_jsonb(after)
            with connection.cursor() as cursor:
                cursor.executemany(
                    "UPDATE documents SET metadata = %s WHERE path = %s", [(m, path) for path, m in changes.items()]
                )
                cursor.executemany(
                    "INSERT INTO metadata_columns VALUES (%s, %s) "
                    "ON CONFLICT (name) DO UPDATE SET type = excluded.type",
                    list(types.items()),
                )
            cleared = {name for given in values.values() for name, value in given.items() if value is None}
            execute(
                "DELETE FROM metadata_columns c WHERE name = ANY(%s) AND NOT EXISTS (SELECT 1 FROM documents WHERE "
                "jsonb_exists(metadata, c.name))",
                (sorted(cleared - types.keys()),),
            )
        return len(changes)

    def documents_with(self, column: str) -> set[str]:
        """Return paths of documents that have a value in a metadata column."""
        return {path for (path,) in self.rows("SELECT path FROM documents WHERE jsonb_exists(metadata, %s)", (column,))}

    def enable_text(self, ocr: bool) -> None:
        """Store the text of pages from now on, with `ocr` also of pages without a text layer."""
        settings = json.dumps(asdict(replace(self.settings, text=True, ocr=ocr)))
        self._execute("UPDATE index_info SET settings = %s, text_complete = false", [(settings,)])
        self.refresh()

    def put_texts(
        self, source: str, digest: str, texts: Mapping[int, PageText], thumbnails: Mapping[int, bytes] | None = None
    ) -> None:
        """Store texts and thumbnails of pages of a live document, by page number, in one commit."""
        version = f"version_id IN ({VERSION_OF} AND v.digest = %s AND v.live)"
        with self.transaction() as connection, connection.cursor() as cursor:
            cursor.executemany(
                f"UPDATE pages SET text = %s, ocr = %s, words = %s, word_count = %s WHERE page = %s AND {version}",
                [(*text_values(text), number, source, digest) for number, text in texts.items()],
            )
            cursor.executemany(
                f"UPDATE pages SET thumbnail = %s WHERE page = %s AND {version}",
                [(image, number, source, digest) for number, image in (thumbnails or {}).items() if image],
            )

    def set_text_complete(self) -> None:
        """Record that every stored page has its text."""
        self._execute("UPDATE index_info SET text_complete = true", [()])

    def delete(self) -> None:
        """Delete the tables of the index."""
        with database_errors(self.address):
            assert self._writer is not None
            self._writer.execute(f"DROP VIEW {', '.join(VIEWS)}")
            self._writer.execute(f"DROP TABLE {', '.join(TABLES)} CASCADE")


def _document_id(connection: Connection, row: PageRow) -> int:
    """Return the id of the document of a page; inserted if it is new."""
    execute = connection.execute
    stored = execute("SELECT id, metadata FROM documents WHERE path = %s", (row.source,)).fetchone()
    if stored is not None:
        metadata = merged_metadata(stored[1], row.metadata)
        if metadata != stored[1]:
            execute("UPDATE documents SET metadata = %s WHERE id = %s", (as_jsonb(metadata), stored[0]))
        return int(stored[0])

    def taken(name: str) -> bool:
        return execute("SELECT 1 FROM documents WHERE public_name = %s", (name,)).fetchone() is not None

    while True:  # another writer may insert a document with the same public name
        public = public_name(row.document, taken)
        values = (
            row.source, row.document, public, folder_of(row.document), folder_of(public), kind_of(row.document),
            as_jsonb(merged_metadata({}, row.metadata)),
        )  # fmt: skip
        inserted = execute(
            "INSERT INTO documents (path, name, public_name, folder, public_folder, kind, metadata) "
            "VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT (public_name) DO NOTHING RETURNING id",
            values,
        ).fetchone()
        if inserted is not None:
            return int(inserted[0])


def page_values(row: PageRow, settings: IndexSettings) -> tuple[object, ...]:
    """Return the columns of a page after its version."""
    codes = scales = provenance = b""
    candidate = None
    if row.encoded is not None:
        vectors = row.encoded.vectors.float().numpy()
        stored, own = settings.coding.encode(vectors)
        codes, scales = stored.tobytes(), own.tobytes()
        provenance = pack(row.encoded) if settings.provenance else b""
        candidate = halfvec(candidate_vector(vectors))
    text = text_values(row.text) if settings.text and row.text is not None else (None, None, None, 0)
    return (
        row.page, 0 if row.encoded is None else len(row.encoded), 0 if row.encoded is None else row.encoded.full,
        codes, scales, provenance, page_checksum(codes, scales, provenance), row.thumbnail or None,
        row.problem, *text, candidate,
    )  # fmt: skip


def page_checksum(codes: bytes, scales: bytes, provenance: bytes) -> int:
    """CRC-32 of what is stored of the vectors of a page."""
    return zlib.crc32(provenance, zlib.crc32(scales, zlib.crc32(codes)))


def halfvec(vector: np.ndarray) -> str:
    """Return a vector as text of the type `halfvec`."""
    return "[" + ",".join(f"{value:.6g}" for value in vector.tolist()) + "]"


def text_values(text: PageText) -> tuple[str, bool, str, int]:
    """Return the columns text, ocr, words and word_count."""
    words = folded_words(text.text)
    return text.text.replace("\0", ""), text.ocr, tsvector(words), len(words)


def tsvector(words: Sequence[str]) -> str:
    """Return words with their positions as text of the type `tsvector`.

    Examples:
        >>> tsvector(["net", "revenue", "net"])
        "'net':1,3 'revenue':2"
    """
    positions: dict[str, list[int]] = {}
    for position, word in enumerate(words, 1):
        places = positions.setdefault(word[:MAX_WORD], [])
        if len(places) < MAX_POSITIONS:
            places.append(min(position, MAX_POSITION))
    return " ".join(f"'{word}':{','.join(map(str, places))}" for word, places in positions.items())


def as_jsonb(values: Mapping[str, Any]) -> str:
    """Metadata as JSON; PostgreSQL stores no null characters."""
    clean = {k: v.replace("\0", "\ufffd") if isinstance(v, str) else v for k, v in values.items()}
    return json.dumps(clean, ensure_ascii=False)
