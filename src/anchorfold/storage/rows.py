"""Rows of `index.db`, written in a transaction; triggers compute checksums and maintain the full-text index."""

from __future__ import annotations

import json
import secrets
import sqlite3
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from anchorfold.filters.values import Plain
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.records import PageRow, PageText, merged_metadata, public_name
from anchorfold.storage.schema import page_id, row_checksum
from anchorfold.storage.snapshot import COLUMNS, FILES, INFO, Snapshot, live_ids
from anchorfold.storage.text_search import spaced


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
    files, columns = (row_checksum(connection.execute(query).fetchall()) for query in (FILES, COLUMNS))
    connection.execute(
        "UPDATE index_info SET commits = commits + 1, token = ?, live_checksum = ?, files_checksum = ?, "
        "columns_checksum = ?",
        (secrets.token_hex(8), zlib.crc32(live_ids(connection).tobytes()), files, columns),
    )
    row = connection.execute(f"SELECT {INFO} FROM index_info").fetchone()
    connection.execute("UPDATE index_info SET checksum = ?", (row_checksum(*row),))


def dump_metadata(metadata: Mapping[str, Plain]) -> str:
    """Metadata as JSON, not escaped: SQLite before 3.45 compares keys as they are written."""
    return json.dumps(dict(metadata), ensure_ascii=False)


def version_ids(connection: sqlite3.Connection, rows: Sequence[PageRow]) -> list[int]:
    """Return the version id of each page; documents and versions that are new are inserted."""

    def taken(name: str) -> bool:
        return connection.execute("SELECT 1 FROM documents WHERE public_name = ?", (name,)).fetchone() is not None

    known: dict[tuple[str, str], int | None] = {}
    for row in rows:
        if (row.source, row.digest) in known:
            continue
        stored = connection.execute("SELECT id, metadata FROM documents WHERE path = ?", (row.source,)).fetchone()
        if stored is None:
            values = (
                row.source,
                row.document,
                public_name(row.document, taken),
                dump_metadata(merged_metadata({}, row.metadata)),
            )
            document = connection.execute(
                "INSERT INTO documents (path, name, public_name, metadata) VALUES (?, ?, ?, ?)", values
            ).lastrowid
        else:
            document, metadata = stored[0], dump_metadata(merged_metadata(json.loads(stored[1]), row.metadata))
            if metadata != stored[1]:
                connection.execute("UPDATE documents SET metadata = ? WHERE id = ?", (metadata, document))
        version = connection.execute(
            "SELECT id FROM versions WHERE document_id = ? AND digest = ?", (document, row.digest)
        ).fetchone()
        known[row.source, row.digest] = (
            version[0]
            if version
            else connection.execute(
                "INSERT INTO versions (document_id, digest, size, modified, pages, live, file_metadata) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    document,
                    row.digest,
                    row.size,
                    row.modified,
                    row.pages,
                    row.live,
                    json.dumps(dict(row.file_metadata)),
                ),
            ).lastrowid
        )
    ids: Any = [known[row.source, row.digest] for row in rows]
    return list(ids)


def insert_pages(snapshot: Snapshot, rows: Sequence[PageRow], versions: Sequence[int]) -> None:
    """Insert pages with their thumbnails, problems and texts."""
    connection = snapshot.connection
    identities = [page_id(version, row.page) for version, row in zip(versions, rows, strict=True)]
    counts = [(0, 0) if row.encoded is None else (len(row.encoded), row.encoded.full) for row in rows]
    connection.executemany(
        "INSERT INTO pages (id, vectors, full_vectors) VALUES (?, ?, ?)",
        ((identity, *count) for identity, count in zip(identities, counts, strict=True)),
    )
    # In ascending order, which the full-text index stores fastest.
    for identity, row in sorted(zip(identities, rows, strict=True), key=lambda item: item[0]):
        if row.problem or row.thumbnail:
            insert_payload(connection, identity, row.thumbnail, row.problem)
        if snapshot.settings.text and row.text is not None:
            insert_text(connection, identity, row.text)


def insert_payload(connection: sqlite3.Connection, identity: int, thumbnail: bytes, problem: str | None) -> None:
    """Insert or replace the thumbnail and the problem of a page, unless there is neither."""
    if thumbnail or problem:
        connection.execute("DELETE FROM page_payloads WHERE page_id = ?", (identity,))
        statement = "INSERT INTO page_payloads (page_id, thumbnail, problem) SELECT id, ?, ? FROM pages WHERE id = ?"
        connection.execute(statement, (thumbnail or None, problem, identity))


def insert_text(connection: sqlite3.Connection, identity: int, text: PageText) -> None:
    """Insert or replace the text of a page."""
    connection.execute("DELETE FROM texts WHERE page_id = ?", (identity,))
    statement = "INSERT INTO texts (page_id, text, ocr) SELECT id, ?, ? FROM pages WHERE id = ?"
    connection.execute(statement, (spaced(text.text), int(text.ocr), identity))


def metadata_changes(
    snapshot: Snapshot, values: Mapping[str, Mapping[str, Plain | None]], types: Mapping[str, str]
) -> tuple[dict[str, str], set[str], Mapping[str, str]]:
    """Metadata of documents that change, by path; columns that no document uses afterwards; and types of columns."""
    execute, changes = snapshot.connection.execute, dict[str, str]()
    for source, given in values.items():
        for (stored,) in execute("SELECT metadata FROM documents WHERE path = ?", (source,)):
            before = json.loads(stored)
            after = merged_metadata(before, given)
            if json.dumps(after, sort_keys=True) != json.dumps(before, sort_keys=True):  # true, 1 and 1.0 differ
                changes[source] = dump_metadata(after)
    users = "SELECT documents.path FROM documents, json_each(documents.metadata) WHERE key = ?"
    cleared = {name for given in values.values() for name, value in given.items() if value is None} - types.keys()
    unused = {
        name
        for name in cleared & snapshot.given_columns.keys()
        if all(path in changes and name not in json.loads(changes[path]) for (path,) in execute(users, (name,)))
    }
    return changes, unused, snapshot.given_columns
