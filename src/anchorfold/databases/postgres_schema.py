"""The tables of an index in PostgreSQL, explained with example queries in `docs/guides/postgresql.md`.

One schema contains one index. `MIGRATIONS` are applied in order; `index_info.schema_version` counts those applied.
"""

from __future__ import annotations

TABLES = (
    "index_info", "documents", "versions", "pages", "metadata_columns", "claims", "lost_pages", "centroids",
    "page_blocks", "posting_lists",
)  # fmt: skip
VIEWS = ("live_pages", "live_documents")
MAX_DIM = 16_000  # dimensions of a halfvec

_FIRST = """
CREATE TABLE index_info (
  id integer PRIMARY KEY CHECK (id = 1),
  application text NOT NULL DEFAULT 'anchorfold' CHECK (application = 'anchorfold'),
  schema_version integer NOT NULL DEFAULT 1,
  index_id text NOT NULL,
  commits bigint NOT NULL DEFAULT 1,
  token text NOT NULL,
  settings jsonb NOT NULL,
  text_complete boolean NOT NULL DEFAULT true
);
CREATE TABLE documents (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  path text COLLATE "C" NOT NULL UNIQUE,
  name text COLLATE "C" NOT NULL,
  public_name text COLLATE "C" NOT NULL UNIQUE,
  folder text COLLATE "C" NOT NULL,
  public_folder text COLLATE "C" NOT NULL,
  kind text COLLATE "C",
  metadata jsonb NOT NULL DEFAULT '{}'
);
CREATE TABLE versions (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  document_id bigint NOT NULL REFERENCES documents (id) ON DELETE CASCADE,
  digest text NOT NULL,
  size bigint NOT NULL,
  modified bigint NOT NULL,
  pages integer NOT NULL,
  live boolean NOT NULL,
  file_metadata jsonb NOT NULL DEFAULT '{}',
  UNIQUE (document_id, digest)
);
CREATE UNIQUE INDEX versions_live ON versions (document_id) WHERE live;
CREATE TABLE pages (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  version_id bigint NOT NULL REFERENCES versions (id) ON DELETE CASCADE,
  page integer NOT NULL,
  vectors integer NOT NULL,
  full_vectors integer NOT NULL,
  codes bytea NOT NULL,
  scales bytea NOT NULL,
  provenance bytea NOT NULL,
  checksum bigint NOT NULL,
  thumbnail bytea,
  problem text,
  text text,
  ocr boolean,
  words tsvector,
  word_count integer NOT NULL DEFAULT 0,
  candidate halfvec(%(dim)s),
  UNIQUE (version_id, page)
);
ALTER TABLE pages ALTER COLUMN codes SET STORAGE EXTERNAL, ALTER COLUMN thumbnail SET STORAGE EXTERNAL,
  ALTER COLUMN provenance SET STORAGE EXTERNAL;
CREATE INDEX pages_words ON pages USING gin (words);
CREATE INDEX pages_candidate ON pages USING hnsw (candidate halfvec_ip_ops);
CREATE TABLE metadata_columns (name text COLLATE "C" PRIMARY KEY, type text NOT NULL);
CREATE UNLOGGED TABLE claims (path text COLLATE "C" PRIMARY KEY, writer bigint NOT NULL);
CREATE TABLE lost_pages (
  path text NOT NULL,
  digest text NOT NULL,
  moved timestamptz NOT NULL DEFAULT now(),
  page integer NOT NULL,
  vectors integer NOT NULL,
  codes bytea NOT NULL,
  scales bytea NOT NULL,
  provenance bytea NOT NULL,
  thumbnail bytea,
  text text
);
CREATE VIEW live_documents AS
SELECT
  v.id AS version_id, d.id AS document_id, d.path, d.name AS document, d.public_name, d.folder, d.public_folder,
  d.kind, v.pages, v.digest, v.size, v.modified AS modified_ns,
  CASE WHEN v.modified > 0
    THEN to_char(to_timestamp(v.modified / 1000000000) AT TIME ZONE 'UTC', 'YYYY-MM-DD') COLLATE "C" END AS modified,
  d.metadata, v.file_metadata
FROM versions v JOIN documents d ON d.id = v.document_id WHERE v.live;
CREATE VIEW live_pages AS
SELECT
  p.id AS page_id, p.page, p.vectors, p.full_vectors, p.codes, p.scales, p.provenance, p.checksum, p.thumbnail,
  p.problem, p.text, p.ocr, p.words, p.word_count, p.candidate, d.*
FROM pages p JOIN live_documents d ON d.version_id = p.version_id;
"""
_POSTING_LISTS = """
ALTER TABLE versions ADD COLUMN state bigint NOT NULL DEFAULT floor(random() * 4e18)::bigint;
DROP INDEX pages_candidate;
CREATE INDEX pages_readable ON pages (version_id) INCLUDE (id, vectors) WHERE vectors > 0;
CREATE TABLE centroids (
  id integer PRIMARY KEY CHECK (id = 1),
  token bigint NOT NULL,
  vectors bigint NOT NULL,
  centroids bytea NOT NULL
);
CREATE TABLE page_blocks (
  id bigint PRIMARY KEY,
  centroids bigint NOT NULL,
  pages bytea NOT NULL
);
CREATE TABLE posting_lists (
  block bigint NOT NULL REFERENCES page_blocks (id) ON DELETE CASCADE,
  centroid integer NOT NULL,
  pages bytea NOT NULL,
  PRIMARY KEY (block, centroid)
);
"""
MIGRATIONS = (_FIRST, _POSTING_LISTS)
MOVE_TO_LOST = """
WITH lost AS (DELETE FROM pages WHERE id = ANY(%s) RETURNING *),
changed AS (UPDATE versions SET state = DEFAULT WHERE id IN (SELECT version_id FROM lost))
INSERT INTO lost_pages (path, digest, page, vectors, codes, scales, provenance, thumbnail, text)
SELECT d.path, v.digest, l.page, l.vectors, l.codes, l.scales, l.provenance, l.thumbnail, l.text
FROM lost l JOIN versions v ON v.id = l.version_id JOIN documents d ON d.id = v.document_id
"""


def statements(applied: int, dim: int) -> list[str]:
    """Return the SQL of the migrations after the first `applied` ones, for vectors of dimension `dim`."""
    return [migration % {"dim": dim} for migration in MIGRATIONS[applied:]]
