"""One commit of an index, read in one SQLite transaction."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.filters.values import BUILT_IN
from anchorfold.storage.column_file import FileEntry
from anchorfold.storage.file_errors import damaged
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.page_content import PageContent
from anchorfold.storage.records import DocumentVersion, PageText, Version
from anchorfold.storage.schema import (
    CHECKED,
    DATABASE,
    DOCUMENT,
    PAGE_BITS,
    VERSION,
    ZERO_WIDTH,
    page_id,
    row_checksum,
)
from anchorfold.storage.segment import OpenSegments, Segment

INFO = "index_id, commits, token, settings, text_complete, live_checksum, files_checksum, columns_checksum"
FILES = "SELECT id, pages, bytes, checksum FROM vector_files ORDER BY id"
COLUMNS = "SELECT name, type FROM metadata_columns ORDER BY name"
PAGES = f"(SELECT count(*) FROM pages p WHERE p.id >= v.id << {PAGE_BITS} AND p.id < (v.id + 1) << {PAGE_BITS})"
JOINED = (
    f"SELECT d.{DOCUMENT.replace(', ', ', d.')}, d.checksum, v.{VERSION.replace(', ', ', v.')}, v.checksum"
    " FROM versions v JOIN documents d ON d.id = v.document_id"
)
BATCH = 500  # parameters of one query


class Snapshot:
    """Reads one commit. Valid only while its transaction is open; used by one thread."""

    def __init__(self, folder: Path, connection: sqlite3.Connection, segments: OpenSegments) -> None:
        self.folder, self.connection, self._segments = folder, connection, segments
        row = connection.execute(f"SELECT {INFO}, checksum FROM index_info").fetchone()
        if row is None or row_checksum(*row[:-1]) != row[-1]:
            raise self.fault("index_info does not match its checksum")
        self.version = Version(*row[:3])
        self.settings = IndexSettings.from_dict(json.loads(row[3]))
        self.text_complete = bool(row[4])
        self._live, self._files, self._columns = row[5:8]

    @property
    def location(self) -> str:
        """The folder, resolved: it identifies the index."""
        return str(self.folder.resolve())

    def fault(self, problem: str) -> AnchorFoldError:
        """Return the error for damage in the database."""
        return damaged(self.folder, f"{DATABASE}: {problem}")

    # What the checksums of `index_info` cover.

    def live_ids(self) -> np.ndarray:
        """Return `(n,)` ids of all live versions, ascending."""
        ids = live_ids(self.connection)
        if zlib.crc32(ids.tobytes()) != self._live:
            raise self.fault("the live versions do not match the checksum")
        return ids

    @cached_property
    def files(self) -> dict[int, FileEntry]:
        """The registered vector files by number."""
        rows = self.connection.execute(FILES).fetchall()
        if row_checksum(rows) != self._files:
            raise self.fault("the registry of vector files does not match the checksum")
        return {number: FileEntry(*entry) for number, *entry in rows}

    @cached_property
    def given_columns(self) -> dict[str, str]:
        """Types of the metadata columns given by users."""
        rows = self.connection.execute(COLUMNS).fetchall()
        if row_checksum(rows) != self._columns:
            raise self.fault("the metadata columns do not match the checksum")
        return dict(rows)

    @property
    def columns(self) -> dict[str, str]:
        """Types of all columns that a filter may use."""
        return {**BUILT_IN, **self.given_columns}

    def segments(self) -> dict[int, Segment]:
        """Return all vector files by number, open."""
        return self._segments.get(self.files)

    # Documents.

    def verify_documents(self) -> None:
        """Verify all rows that a filter reads, once per commit and process: SQL does not verify checksums.

        Raises:
            DamagedError: the entry of a document does not match its checksum, or the view of live documents, which is
                read with an SQL index, does not contain exactly the live versions.
        """
        if self._segments.verified == self.version:
            return
        for table in ("documents", "versions"):
            # One text per row is faster than its values.
            text = " || char(31) || ".join(CHECKED[table].split(", "))
            for row, checksum, identity in self.connection.execute(
                f"SELECT {text} || char(31), checksum, id FROM {table}"
            ):
                if row is None or zlib.crc32(row.encode()) != checksum:
                    raise self.fault(f"row {identity} of {table} does not match its checksum")
        queries = (
            "SELECT version_id, document_id FROM live_documents ORDER BY version_id",
            "SELECT id, document_id FROM versions NOT INDEXED WHERE live ORDER BY id",
        )
        visible, live = (self.connection.execute(query).fetchall() for query in queries)
        if visible != live or [version for version, _ in live] != self.live_ids().tolist():
            raise self.fault("an SQL index does not match its table")
        self._segments.verified = self.version

    def verify_pages(self, searchable: np.ndarray) -> None:
        """Verify that filters on page numbers see all pages: rows of pages have no checksum.

        Args:
            searchable: `(n,)` ids of the pages that the vector files contain.
        """
        ids = np.fromiter((i for (i,) in self.connection.execute("SELECT page_id FROM live_pages")), np.int64)
        if not np.isin(searchable, ids).all():
            raise self.fault("pages of the vector files are missing")

    def checked_version(self, row: Sequence[Any]) -> DocumentVersion:
        """Return a version from a row of `JOINED`, verified."""
        document, version = row[:6], row[6:]
        if row_checksum(*document[:-1]) != document[-1] or row_checksum(*version[:-1]) != version[-1]:
            raise self.fault(f"the entry of document {document[0]} does not match its checksum")
        return document_version(document, version)

    def versions(self, where: str = "true", parameters: Sequence[object] = ()) -> Iterator[DocumentVersion]:
        """Versions for which an SQL condition on `d` (documents) and `v` (versions) holds."""
        return map(self.checked_version, self.connection.execute(f"{JOINED} WHERE {where}", parameters))

    def versions_by_id(self, ids: Iterable[int]) -> dict[int, DocumentVersion]:
        """Return versions by id; ids that do not exist are left out."""
        wanted, known = sorted(set(ids)), {}
        for first in range(0, len(wanted), BATCH):
            batch = wanted[first : first + BATCH]
            known.update({v.id: v for v in self.versions(f"v.id IN ({', '.join('?' * len(batch))})", batch)})
        return known

    def live_version(self, source: str) -> DocumentVersion | None:
        """Return the live version of a document by its path."""
        return next(self.versions("d.path = ? AND v.live", (source,)), None)

    # Pages.

    def page(self, source: str, number: int) -> StoredPage | None:
        """Return a live page; None if there is none."""
        version = self.live_version(source)
        if version is None:
            return None
        for segment in self.segments().values():
            for row in np.flatnonzero((segment.version == version.id) & (segment.page == number)).tolist():
                return StoredPage(self, version, segment, row)
        return None

    def pages(self) -> Iterator[StoredPage]:
        """All live pages that have vectors, in no particular order."""
        live = self.versions_by_id(self.live_ids().tolist())
        for segment in self.segments().values():
            for row, number in enumerate(segment.version.tolist()):
                if segment.kept[row] and number in live:
                    yield StoredPage(self, live[number], segment, row)

    def _checked_row(self, table: str, identity: int, problem: str) -> Sequence[Any] | None:
        row = self.connection.execute(f"SELECT * FROM {table} WHERE page_id = ?", (identity,)).fetchone()
        if row is not None and row_checksum(*row[:-1]) != row[-1]:
            raise self.fault(f"the {problem} of a page does not match its checksum")
        columns: Sequence[Any] | None = row
        return columns

    def payload(self, identity: int) -> tuple[bytes, str | None]:
        """Thumbnail and problem of a page by its id."""
        row = self._checked_row("page_payloads", identity, "thumbnail")
        return (b"", None) if row is None else (row[1] or b"", row[2])

    def text(self, identity: int) -> PageText | None:
        """Return the text of a page by its id; None if it is not stored."""
        row = self._checked_row("texts", identity, "text")
        return None if row is None else PageText(row[1].replace(ZERO_WIDTH, ""), bool(row[2]))


class StoredPage(PageContent):
    """A page of a vector file; its parts are read when they are used."""

    def __init__(self, snapshot: Snapshot, version: DocumentVersion, segment: Segment, row: int) -> None:
        page, full, kept = (int(column[row]) for column in (segment.page, segment.full, segment.kept))
        super().__init__(snapshot.settings, version, page, full, kept)
        self.snapshot, self.segment, self.row = snapshot, segment, row

    @property
    def id(self) -> int:
        """Id of the page in the database."""
        return page_id(self.version.id, self.page)

    @cached_property
    def _payload(self) -> tuple[bytes, str | None]:
        return self.snapshot.payload(self.id)

    @property
    def thumbnail(self) -> bytes:
        """A small WebP or JPEG, or nothing."""
        return self._payload[0]

    @property
    def problem(self) -> str | None:
        """Why the page could not be read."""
        return self._payload[1]

    @property
    def text(self) -> str | None:
        """The text of the page; None if it is not stored."""
        stored = self.snapshot.text(self.id)
        return None if stored is None else stored.text

    @property
    def vectors(self) -> np.ndarray:
        """`(kept, dim)` float32."""
        return self.segment.vectors(self.row, self.settings.coding)

    def packed_provenance(self) -> bytes:
        """Return the result of `provenance.pack`; nothing if the index stores none."""
        return self.segment.provenance(self.row)

    def fault(self, problem: str) -> AnchorFoldError:
        """Return the error for a damaged vector file."""
        return self.segment.fault(problem)


def document_version(document: Sequence[Any], version: Sequence[Any]) -> DocumentVersion:
    """Return a version from its row and the row of its document."""
    identity, _, digest, size, modified, pages, live, file_metadata, _ = version
    return DocumentVersion(
        identity, document[0], document[1], document[2], document[3], digest, size, modified, pages, bool(live),
        json.loads(document[4]), json.loads(file_metadata),
    )  # fmt: skip


def live_ids(connection: sqlite3.Connection) -> np.ndarray:
    """Return `(n,)` ids of all live versions, not verified."""
    rows = connection.execute("SELECT id FROM versions WHERE live ORDER BY id")
    return np.fromiter((number for (number,) in rows), np.int64)
