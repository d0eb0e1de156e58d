"""The SQLite schema of `index.db`, explained with example queries in `docs/storage.md`.

Every row that decides what a search returns has a CRC-32 in its last column. `index_info.checksum` covers the settings,
the set of live versions, the registered vector files and the metadata columns, so that a flipped bit is reported
instead of changing a result.
"""

from __future__ import annotations

import re
import zlib

DATABASE = "index.db"
VECTORS = "vectors"
LOST = "lost"
APPLICATION_ID = 0x41464C44  # "AFLD"
SCHEMA_VERSION = 5
PAGE_BITS = 24  # of a page id: the bits above are the version id
ZERO_WIDTH = "\u200b"  # separates the words of stored texts in scripts without spaces
TOKENIZER = "unicode61 remove_diacritics 2"  # no stemmer: it lost 3.1 points of NDCG@5 (docs/research/results.md)
DOCUMENT = "id, path, name, public_name, metadata"
VERSION = "id, document_id, digest, size, modified, pages, live, file_metadata"
CHECKED = {
    "documents": DOCUMENT,
    "versions": VERSION,
    "page_payloads": "page_id, thumbnail, problem",
    "texts": "page_id, text, ocr",
}  # columns that the checksum of a row covers

SETUP = f"""
PRAGMA page_size = 8192;
PRAGMA auto_vacuum = incremental;
PRAGMA application_id = {APPLICATION_ID};
"""

SCHEMA = f"""
CREATE TABLE index_info ( -- schema {SCHEMA_VERSION}
  id INTEGER PRIMARY KEY CHECK (id = 1),
  index_id TEXT NOT NULL,
  commits INTEGER NOT NULL,
  token TEXT NOT NULL,
  settings TEXT NOT NULL,
  text_complete INTEGER NOT NULL,
  live_checksum INTEGER NOT NULL,
  files_checksum INTEGER NOT NULL,
  columns_checksum INTEGER NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE documents (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  path TEXT NOT NULL UNIQUE,
  name TEXT NOT NULL,
  public_name TEXT NOT NULL UNIQUE,
  metadata TEXT NOT NULL DEFAULT '{{}}',
  checksum INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE versions (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  document_id INTEGER NOT NULL REFERENCES documents (id),
  digest TEXT NOT NULL,
  size INTEGER NOT NULL,
  modified INTEGER NOT NULL,
  pages INTEGER NOT NULL,
  live INTEGER NOT NULL,
  file_metadata TEXT NOT NULL,
  checksum INTEGER NOT NULL DEFAULT 0,
  UNIQUE (document_id, digest)
) STRICT;
CREATE UNIQUE INDEX live_version ON versions (document_id) WHERE live;
CREATE TABLE pages (
  id INTEGER PRIMARY KEY,
  vectors INTEGER NOT NULL,
  full_vectors INTEGER NOT NULL,
  thumbnail_bytes INTEGER NOT NULL DEFAULT 0,
  text_bytes INTEGER NOT NULL DEFAULT 0,
  version_id INTEGER GENERATED ALWAYS AS (id >> {PAGE_BITS}) VIRTUAL,
  number INTEGER GENERATED ALWAYS AS (id & {(1 << PAGE_BITS) - 1}) VIRTUAL
) STRICT;
CREATE TABLE page_payloads (
  page_id INTEGER PRIMARY KEY REFERENCES pages (id) ON DELETE CASCADE,
  thumbnail BLOB,
  problem TEXT,
  checksum INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE texts (
  page_id INTEGER PRIMARY KEY REFERENCES pages (id) ON DELETE CASCADE,
  text TEXT NOT NULL,
  ocr INTEGER NOT NULL,
  checksum INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE metadata_columns (name TEXT PRIMARY KEY, type TEXT NOT NULL) STRICT;
CREATE TABLE vector_files (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  pages INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
CREATE VIEW live_documents AS
SELECT
  v.id AS version_id, d.id AS document_id, d.path AS path, d.name AS document, d.public_name AS public_name,
  v.pages AS pages, CASE WHEN v.modified > 0 THEN date(v.modified / 1000000000, 'unixepoch') END AS modified,
  d.metadata AS metadata, v.file_metadata AS file_metadata
FROM versions v JOIN documents d ON d.id = v.document_id WHERE v.live;
CREATE VIEW live_pages AS
SELECT p.id AS page_id, p.number AS page, p.vectors AS vectors, p.full_vectors AS full_vectors, l.*
FROM pages p JOIN live_documents l ON l.version_id = p.version_id;
CREATE VIEW live_texts AS
SELECT t.page_id AS page_id, t.text AS text
FROM texts t JOIN versions v ON v.id = t.page_id >> {PAGE_BITS} WHERE v.live;
CREATE VIRTUAL TABLE text_index USING fts5 (
  text, content='live_texts', content_rowid='page_id', tokenize='{TOKENIZER}'
);
"""

_NEW = {table: re.sub(r"\b(?=\w)", "NEW.", columns) for table, columns in CHECKED.items()}
# For connections that write. Temporary, so that readers do not need to trust triggers of the file.
TRIGGERS = (
    "PRAGMA trusted_schema = on;"  # FTS5 requires it in triggers
    + "".join(
        f"CREATE TEMP TRIGGER {event[:6].lower()}_{table}_checksum AFTER {event} ON main.{table} BEGIN "
        f"UPDATE {table} SET checksum = row_checksum({_NEW[table]}) WHERE rowid = NEW.rowid; END;"
        for table, columns in CHECKED.items()
        for event in ("INSERT", f"UPDATE OF {columns.partition(', ')[2]}")
    )
    + f"""
CREATE TEMP TRIGGER insert_text AFTER INSERT ON main.texts BEGIN
  UPDATE pages SET text_bytes = length(CAST(NEW.text AS BLOB)) WHERE id = NEW.page_id;
  INSERT INTO text_index (rowid, text) SELECT NEW.page_id, NEW.text
  FROM versions WHERE id = NEW.page_id >> {PAGE_BITS} AND live;
END;
CREATE TEMP TRIGGER delete_text AFTER DELETE ON main.texts BEGIN
  INSERT INTO text_index (text_index, rowid, text) SELECT 'delete', OLD.page_id, OLD.text
  FROM versions WHERE id = OLD.page_id >> {PAGE_BITS} AND live;
END;
CREATE TEMP TRIGGER insert_payload AFTER INSERT ON main.page_payloads BEGIN
  UPDATE pages SET thumbnail_bytes = coalesce(length(NEW.thumbnail), 0) WHERE id = NEW.page_id;
END;
CREATE TEMP TRIGGER promote_version AFTER UPDATE OF live ON main.versions WHEN NEW.live AND NOT OLD.live BEGIN
  INSERT INTO text_index (rowid, text) SELECT page_id, text
  FROM texts WHERE page_id >= NEW.id << {PAGE_BITS} AND page_id < (NEW.id + 1) << {PAGE_BITS};
END;
CREATE TEMP TRIGGER delete_version BEFORE DELETE ON main.versions BEGIN
  DELETE FROM pages WHERE id >= OLD.id << {PAGE_BITS} AND id < (OLD.id + 1) << {PAGE_BITS};
END;
CREATE TEMP TRIGGER delete_document AFTER DELETE ON main.versions BEGIN
  DELETE FROM documents WHERE id = OLD.document_id
  AND NOT EXISTS (SELECT 1 FROM versions WHERE document_id = OLD.document_id);
END;
"""
)


def row_checksum(*values: object) -> int:
    """CRC-32 of the values of a row."""
    return zlib.crc32(b"".join(v if isinstance(v, bytes) else f"{v}\x1f".encode() for v in values))


def page_id(version: int, number: int) -> int:
    """Return the id of page `number` (from 1) of a version."""
    return version << PAGE_BITS | number


def page_range(version: int) -> tuple[int, int]:
    """First (inclusive) and last (exclusive) page id of a version."""
    return version << PAGE_BITS, (version + 1) << PAGE_BITS


def public_page_id(document: int, number: int) -> str:
    """Return the identifier of a page for clients of a server: the same as long as the document exists."""
    return f"{document}-{number}"
