"""One commit of an index, read in one SQLite transaction."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.index.store.column_file import FileEntry
from anchorfold.index.store.database import row_checksum
from anchorfold.index.store.faults import damaged
from anchorfold.index.store.provenance import unpack
from anchorfold.index.store.records import BUILT_IN, DocumentState, DocumentVersion, PageText, Version
from anchorfold.index.store.schema import DATABASE, PAGE_BITS, page_id, page_range, public_page_id
from anchorfold.index.store.segment import OpenSegments, Segment
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.words import joined

if TYPE_CHECKING:
    from anchorfold.page import EncodedPage

INFO = "index_id, commits, token, settings, text_complete, live_checksum, files_checksum, columns_checksum"
DOCUMENT = "d.id, d.path, d.name, d.public_name, d.metadata"
VERSION = "v.id, v.document_id, v.digest, v.size, v.modified, v.pages, v.live, v.file_metadata"
JOINED = (
    f"SELECT {DOCUMENT}, d.checksum, {VERSION}, v.checksum FROM versions v JOIN documents d ON d.id = v.document_id"
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
        self._checksums = dict(zip(("live", "files", "columns"), row[5:8], strict=True))

    def fault(self, problem: str) -> AnchorFoldError:
        """The error for damage in the database."""
        return damaged(self.folder, f"{DATABASE}: {problem}")

    # What the checksums of `index_info` cover.

    def live_ids(self) -> np.ndarray:
        """`(n,)` ids of all live versions, ascending."""
        ids = live_ids(self.connection)
        self._require(zlib.crc32(ids.tobytes()), "live", "the live versions do")
        return ids

    @cached_property
    def files(self) -> dict[int, FileEntry]:
        """The registered vector files by number."""
        rows = self.connection.execute("SELECT id, pages, bytes, checksum FROM vector_files ORDER BY id").fetchall()
        self._require(row_checksum(rows), "files", "the registry of vector files does")
        return {number: FileEntry(*entry) for number, *entry in rows}

    @cached_property
    def given_columns(self) -> dict[str, str]:
        """Types of the metadata columns given by users."""
        rows = self.connection.execute("SELECT name, type FROM metadata_columns ORDER BY name").fetchall()
        self._require(row_checksum(rows), "columns", "the metadata columns do")
        return dict(rows)

    @property
    def columns(self) -> dict[str, str]:
        """Types of all columns that a filter may use."""
        return {**BUILT_IN, **self.given_columns}

    def _require(self, checksum: int, name: str, what: str) -> None:
        if checksum != self._checksums[name]:
            raise self.fault(f"{what} not match the checksum")

    def segments(self) -> dict[int, Segment]:
        """All vector files by number, open."""
        return self._segments.get(self.files)

    # Documents.

    def _version(self, row: Sequence[Any]) -> DocumentVersion:
        document, document_sum, version, version_sum = row[:5], row[5], row[6:14], row[14]
        if row_checksum(*document) != document_sum or row_checksum(*version) != version_sum:
            raise self.fault(f"the entry of document {document[0]} does not match its checksum")
        identity, digest, size, modified, pages, live = version[0], *version[2:7]
        _, source, name, public_name, metadata = document
        return DocumentVersion(
            identity, document[0], source, name, public_name, digest, size, modified, pages, bool(live),
            json.loads(metadata), json.loads(version[7]),
        )  # fmt: skip

    def versions(self, where: str = "true", parameters: Sequence[object] = ()) -> Iterator[DocumentVersion]:
        """Versions for which an SQL condition on `d` (documents) and `v` (versions) holds."""
        return map(self._version, self.connection.execute(f"{JOINED} WHERE {where}", parameters))

    def versions_by_id(self, ids: Iterable[int]) -> dict[int, DocumentVersion]:
        """Versions by id; ids that do not exist are left out."""
        wanted, known = sorted(set(ids)), {}
        for first in range(0, len(wanted), BATCH):
            some = wanted[first : first + BATCH]
            known.update({v.id: v for v in self.versions(f"v.id IN ({', '.join('?' * len(some))})", some)})
        return known

    def live_version(self, source: str) -> DocumentVersion | None:
        """The live version of a document by its path."""
        return next(self.versions("d.path = ? AND v.live", (source,)), None)

    def names(self) -> dict[str, str]:
        """Paths and names of all live documents."""
        return dict(self.connection.execute("SELECT path, document FROM live_documents ORDER BY version_id"))

    def documents(self) -> dict[str, DocumentState]:
        """The state of every document by path, live or staged, with numbers of stored pages."""
        pages = f"(SELECT count(*) FROM pages p WHERE p.id >= v.id << {PAGE_BITS} AND p.id < (v.id + 1) << {PAGE_BITS})"
        states: dict[str, DocumentState] = {}
        for *row, stored in self.connection.execute(JOINED.replace(" FROM", f", {pages} FROM", 1)):
            version = self._version(row)
            state = states.setdefault(version.source, DocumentState(version.name))
            if version.live:
                state.digest, state.size, state.modified = version.digest, version.size, version.modified
                state.pages, state.stored = version.pages, stored
            elif stored:
                state.staged[version.digest] = stored
        return states

    def stored_pages(self, sources: Iterable[str]) -> dict[str, dict[str, set[int]]]:
        """Numbers of stored pages of some documents, by path and digest."""
        stored: dict[str, dict[str, set[int]]] = {}
        for source in sources:
            for version in self.versions("d.path = ?", (source,)):
                rows = self.connection.execute(
                    "SELECT number FROM pages WHERE id >= ? AND id < ?", page_range(version.id)
                )
                stored.setdefault(source, {})[version.digest] = {number for (number,) in rows}
        return stored

    # Pages.

    def page(self, source: str, number: int) -> StoredPage | None:
        """A live page; None if there is none."""
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

    def payload(self, identity: int) -> tuple[bytes, str | None]:
        """Thumbnail and problem of a page by its id."""
        query = "SELECT page_id, thumbnail, problem, checksum FROM page_payloads WHERE page_id = ?"
        row = self.connection.execute(query, (identity,)).fetchone()
        if row is None:
            return b"", None
        if payload_checksum(*row[:3]) != row[3]:
            raise self.fault("the thumbnail of a page does not match its checksum")
        return row[1] or b"", row[2]

    def text(self, identity: int) -> PageText | None:
        """The text of a page by its id; None if it is not stored."""
        query = "SELECT page_id, text, ocr, checksum FROM texts WHERE page_id = ?"
        row = self.connection.execute(query, (identity,)).fetchone()
        if row is None:
            return None
        if row_checksum(*row[:3]) != row[3]:
            raise self.fault("the text of a page does not match its checksum")
        return PageText(joined(row[1]), bool(row[2]))


@dataclass(frozen=True)
class StoredPage:
    """A stored page; its parts are read when they are used."""

    snapshot: Snapshot
    version: DocumentVersion
    segment: Segment
    row: int

    @property
    def settings(self) -> IndexSettings:
        """The settings of the index."""
        return self.snapshot.settings

    @property
    def source(self) -> str:
        """Absolute path of the document."""
        return self.version.source

    @property
    def document(self) -> str:
        """Name of the document as given."""
        return self.version.name

    @property
    def page(self) -> int:
        """Page number, from 1."""
        return int(self.segment.page[self.row])

    @property
    def id(self) -> int:
        """Id of the page in the database."""
        return page_id(self.version.id, self.page)

    @property
    def public_id(self) -> str:
        """Identifier of the page for clients of a server: `Hit.page_id`."""
        return public_page_id(self.version.document_id, self.page)

    @property
    def full(self) -> int:
        """Number of vectors before compression."""
        return int(self.segment.full[self.row])

    @property
    def kept(self) -> int:
        """Number of stored vectors; 0 if the page could not be read."""
        return int(self.segment.kept[self.row])

    @property
    def thumbnail(self) -> bytes:
        """A small WebP or JPEG, or nothing."""
        return self.snapshot.payload(self.id)[0]

    @property
    def text(self) -> str | None:
        """The text of the page; None if it is not stored."""
        stored = self.snapshot.text(self.id)
        return None if stored is None else stored.text

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the document: read from the file, and given by the user."""
        return {**self.version.file_metadata, **self.version.metadata}

    @property
    def vectors(self) -> np.ndarray:
        """`(kept, dim)` float32."""
        return self.segment.vectors(self.row, self.settings.coding)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """`anchors (m,)`, `groups (N,)`, `weights (N,)`, `grid`."""
        stored = self.segment.provenance(self.row)
        if not stored:
            raise AnchorFoldError(
                f"{self.document} page {self.page} has no stored provenance: the index was created with "
                "--no-provenance, which supports search only."
            )
        try:
            return unpack(stored)
        except (ValueError, KeyError, TypeError) as error:
            raise self.segment.fault(f"the provenance of page {self.page} cannot be read ({error})") from error

    def encoded(self) -> EncodedPage:
        """The page as it was compressed, in float32."""
        import torch

        from anchorfold.page import EncodedPage

        vectors, known = torch.from_numpy(self.vectors), self.provenance
        anchors, groups, weights = (torch.from_numpy(known[name]) for name in ("anchors", "groups", "weights"))
        return EncodedPage(vectors, anchors, groups, weights, known["grid"])

    def details(self) -> dict[str, Any]:
        """Everything that is stored of the page except its vectors and text."""
        version, (thumbnail, problem) = self.version, self.snapshot.payload(self.id)
        return {
            "source": self.source, "document": self.document, "page": self.page, "pages": version.pages,
            "digest": version.digest, "size": version.size, "modified": version.modified, "full": self.full,
            "kept": self.kept, "thumbnail": thumbnail, "problem": problem,
        }  # fmt: skip


def live_ids(connection: sqlite3.Connection) -> np.ndarray:
    """`(n,)` ids of all live versions, not verified."""
    rows = connection.execute("SELECT id FROM versions WHERE live ORDER BY id")
    return np.fromiter((number for (number,) in rows), np.int64)


def payload_checksum(identity: int, thumbnail: bytes | None, problem: str | None) -> int:
    """CRC-32 of a row of `page_payloads`."""
    return zlib.crc32(thumbnail or b"", row_checksum(identity, problem))
