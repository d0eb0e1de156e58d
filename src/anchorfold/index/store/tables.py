"""Rows of `index.db` with their checksums. All functions run within a write transaction."""

from __future__ import annotations

import json
import secrets
import sqlite3
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from anchorfold.index.store.database import row_checksum
from anchorfold.index.store.records import DocumentVersion, PageRow, PageText, Plain
from anchorfold.index.store.schema import page_id, page_range
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.store.snapshot import INFO, live_ids, payload_checksum
from anchorfold.index.words import spaced


def insert_index(
    connection: sqlite3.Connection, index_id: str, settings: IndexSettings, text_complete: bool, commits: int = 0
) -> None:
    """Insert the row of a new index and seal it."""
    connection.execute(
        f"INSERT INTO index_info ({INFO}, checksum) VALUES (?, ?, '', ?, ?, 0, 0, 0, 0)",
        (index_id, commits, json.dumps(asdict(settings)), int(text_complete)),
    )
    seal(connection)


def seal(connection: sqlite3.Connection) -> None:
    """Give a commit its token and its checksums: the last step of every write transaction."""
    files = connection.execute("SELECT id, pages, bytes, checksum FROM vector_files ORDER BY id").fetchall()
    columns = connection.execute("SELECT name, type FROM metadata_columns ORDER BY name").fetchall()
    connection.execute(
        "UPDATE index_info SET commits = commits + 1, token = ?, live_checksum = ?, files_checksum = ?, "
        "columns_checksum = ?",
        (secrets.token_hex(8), zlib.crc32(live_ids(connection).tobytes()), row_checksum(files), row_checksum(columns)),
    )
    row = connection.execute(f"SELECT {INFO} FROM index_info").fetchone()
    connection.execute("UPDATE index_info SET checksum = ?", (row_checksum(*row),))


def read_document(connection: sqlite3.Connection, path: str) -> tuple[int, str, str, dict[str, Plain]] | None:
    """Id, name, public name and metadata of a document by its path; None if there is none."""
    query = "SELECT id, name, public_name, metadata FROM documents WHERE path = ?"
    row = connection.execute(query, (path,)).fetchone()
    return None if row is None else (row[0], row[1], row[2], json.loads(row[3]))


def write_document(
    connection: sqlite3.Connection,
    identity: int | None,
    path: str,
    name: str,
    public: str,
    metadata: Mapping[str, Plain],
) -> int:
    """Insert (`identity` None) or update a document; returns its id."""
    if identity is None:
        identity = connection.execute(
            "INSERT INTO documents (path, name, public_name, metadata, checksum) VALUES (?, ?, ?, '{}', 0)",
            (path, name, public),
        ).lastrowid
        assert identity is not None
    # Not escaped: SQLite before 3.45 compares keys of JSON as they are written.
    row = (identity, path, name, public, json.dumps(dict(metadata), ensure_ascii=False))
    connection.execute(
        "UPDATE documents SET path = ?, name = ?, public_name = ?, metadata = ?, checksum = ? WHERE id = ?",
        (*row[1:], row_checksum(*row), identity),
    )
    return identity


def write_version(
    connection: sqlite3.Connection, identity: int | None, document: int, version: PageRow | DocumentVersion
) -> int:
    """Insert (`identity` None) or update a version; returns its id."""
    if identity is None:
        identity = connection.execute(
            "INSERT INTO versions (document_id, digest, size, modified, pages, live, file_metadata, checksum) "
            "VALUES (?, ?, 0, 0, 0, 0, '{}', 0)",
            (document, version.digest),
        ).lastrowid
        assert identity is not None
    row = (
        identity, document, version.digest, version.size, version.modified, version.pages, int(version.live),
        json.dumps(dict(version.file_metadata)),
    )  # fmt: skip
    connection.execute(
        "UPDATE versions SET document_id = ?, digest = ?, size = ?, modified = ?, pages = ?, live = ?, "
        "file_metadata = ?, checksum = ? WHERE id = ?",
        (*row[1:], row_checksum(*row), identity),
    )
    return identity


def insert_pages(
    connection: sqlite3.Connection, rows: Sequence[PageRow], versions: Sequence[int], settings: IndexSettings
) -> None:
    """Insert pages with their thumbnails, problems and texts."""
    identities = [page_id(version, row.page) for version, row in zip(versions, rows, strict=True)]
    connection.executemany(
        "INSERT INTO pages (id, vectors, full_vectors) VALUES (?, ?, ?)",
        (
            (identity, 0 if row.encoded is None else len(row.encoded), 0 if row.encoded is None else row.encoded.full)
            for identity, row in zip(identities, rows, strict=True)
        ),
    )
    live: dict[int, list[int]] = {}
    for identity, version, row in zip(identities, versions, rows, strict=True):
        if row.thumbnail or row.problem:
            insert_payload(connection, identity, row.thumbnail, row.problem)
        if settings.text and row.text is not None:
            insert_text(connection, identity, row.text)
            if row.live:
                live.setdefault(version, []).append(identity)
    for version, new in sorted(live.items()):
        index_texts(connection, version, new)


def insert_payload(connection: sqlite3.Connection, identity: int, thumbnail: bytes, problem: str | None) -> None:
    """Insert or replace the thumbnail and the problem of a page."""
    image = thumbnail or None
    row = (identity, image, problem, payload_checksum(identity, image, problem))
    connection.execute("INSERT OR REPLACE INTO page_payloads VALUES (?, ?, ?, ?)", row)
    connection.execute("UPDATE pages SET thumbnail_bytes = ? WHERE id = ?", (len(thumbnail), identity))


def insert_text(connection: sqlite3.Connection, identity: int, text: PageText) -> None:
    """Insert or replace the text of a page, without its full-text index."""
    row = (identity, spaced(text.text), int(text.ocr))
    connection.execute("INSERT OR REPLACE INTO texts VALUES (?, ?, ?, ?)", (*row, row_checksum(*row)))
    connection.execute("UPDATE pages SET text_bytes = ? WHERE id = ?", (len(row[1].encode()), identity))


def _chosen(version: int, identities: Sequence[int] | None) -> tuple[str, list[int]]:
    first, last = page_range(version)
    if identities is None:
        return "page_id >= ? AND page_id < ?", [first, last]
    return "page_id >= ? AND page_id < ? AND page_id IN (SELECT value FROM json_each(?))", [first, last]


def index_texts(connection: sqlite3.Connection, version: int, identities: Sequence[int] | None = None) -> None:
    """Add texts of a live version to the full-text index: those of some pages, or all."""
    condition, parameters = _chosen(version, identities)
    more = [] if identities is None else [json.dumps(list(identities))]
    connection.execute(
        f"INSERT INTO text_index (rowid, text) SELECT page_id, text FROM texts WHERE {condition}", [*parameters, *more]
    )


def unindex_texts(connection: sqlite3.Connection, version: int, identities: Sequence[int] | None = None) -> None:
    """Remove texts of a live version from the full-text index, before they change or are deleted."""
    condition, parameters = _chosen(version, identities)
    more = [] if identities is None else [json.dumps(list(identities))]
    connection.execute(
        f"INSERT INTO text_index (text_index, rowid, text) SELECT 'delete', page_id, text FROM texts WHERE {condition}",
        [*parameters, *more],
    )


def delete_versions(connection: sqlite3.Connection, versions: Iterable[DocumentVersion]) -> None:
    """Delete versions with their pages, and documents that have no version left."""
    for version in versions:
        if version.live:
            unindex_texts(connection, version.id)
        bounds = page_range(version.id)
        connection.execute("DELETE FROM texts WHERE page_id >= ? AND page_id < ?", bounds)
        connection.execute("DELETE FROM page_payloads WHERE page_id >= ? AND page_id < ?", bounds)
        connection.execute("DELETE FROM pages WHERE id >= ? AND id < ?", bounds)
        connection.execute("DELETE FROM versions WHERE id = ?", (version.id,))
        connection.execute(
            "DELETE FROM documents WHERE id = ? AND NOT EXISTS (SELECT 1 FROM versions WHERE document_id = ?)",
            (version.document_id, version.document_id),
        )
