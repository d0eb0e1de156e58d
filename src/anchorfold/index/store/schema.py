"""The SQLite schema of `index.db`.

`docs/storage.md` explains it with example queries. Every row that decides what a search returns carries a CRC-32, and
`index_info.checksum` covers the settings, the set of live versions, the registered vector files and the metadata
columns, so that a flipped bit is reported instead of changing an answer.
"""

from __future__ import annotations

DATABASE = "index.db"
VECTORS = "vectors"
LOST = "lost"
APPLICATION_ID = 0x41464C44  # "AFLD"
SCHEMA_VERSION = 3
PAGE_BITS = 24  # of a page id: the bits above hold the version id
TOKENIZER = "unicode61 remove_diacritics 2"  # no stemmer: it lost 3.1 points of NDCG@5 (docs/guides/text.md)

SETUP = f"""
PRAGMA page_size = 8192;
PRAGMA auto_vacuum = incremental;
PRAGMA application_id = {APPLICATION_ID};
"""

SCHEMA = f"""
CREATE TABLE index_info (
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
  metadata TEXT NOT NULL,
  checksum INTEGER NOT NULL
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
  checksum INTEGER NOT NULL,
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
  page_id INTEGER PRIMARY KEY,
  thumbnail BLOB,
  problem TEXT,
  checksum INTEGER NOT NULL
) STRICT;
CREATE TABLE texts (
  page_id INTEGER PRIMARY KEY,
  text TEXT NOT NULL,
  ocr INTEGER NOT NULL,
  checksum INTEGER NOT NULL
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


def page_id(version: int, number: int) -> int:
    """The id of page `number` (from 1) of a version."""
    return version << PAGE_BITS | number


def page_range(version: int) -> tuple[int, int]:
    """First (inclusive) and last (exclusive) page id of a version."""
    return version << PAGE_BITS, (version + 1) << PAGE_BITS


def public_page_id(document: int, number: int) -> str:
    """The identifier of a page for clients of a server: the same as long as the document exists."""
    return f"{document}-{number}"
