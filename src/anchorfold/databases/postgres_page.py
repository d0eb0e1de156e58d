"""Pages of an index in PostgreSQL as other packages read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from anchorfold.databases.postgres_connection import Connection
from anchorfold.databases.postgres_documents import page_checksum
from anchorfold.errors import AnchorFoldError, DamagedError
from anchorfold.quantization.codec import Coding
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.page_content import PageContent
from anchorfold.storage.records import DocumentVersion

VERSION_COLUMNS = (
    "version_id, document_id, path, document, public_name, digest, size, modified_ns, pages, metadata, file_metadata"
)
BATCH = 64  # pages per request of an export


def document_version(row: Sequence[Any]) -> DocumentVersion:
    """Return the version of a document from a row of `VERSION_COLUMNS`."""
    identity, document_id, source, name, public, digest, size, modified, pages, metadata, file_metadata = row
    return DocumentVersion(
        identity, document_id, source, name, public, digest, size, modified, pages, True, metadata, file_metadata
    )


def difference(coding: Coding, vectors: int, columns: Sequence[bytes], checksum: int) -> str | None:
    """Return how a page differs from what was written; `columns` are its codes, scales and provenance."""
    if page_checksum(*columns) != checksum:
        return "does not match its checksum"
    return None if vectors * coding.row_bytes == len(columns[0]) else "has another number of vectors than its codes"


def page_damaged(location: str, document: str, page: int, reason: str) -> DamagedError:
    """Return the error for a page that differs from what was written."""
    problem = f"page {page} of {document} {reason}"
    return DamagedError(
        f"{location} is damaged ({problem}): `anchorfold check '{location}'` lists the affected documents and how to "
        "repair the index.",
        problem,
    )


class PostgresPage(PageContent):
    """A page; its parts are fetched when they are used, in the transaction that selected it."""

    def __init__(
        self, connection: Connection, location: str, settings: IndexSettings, identity: int, counts: Sequence[int],
        version: DocumentVersion,
    ) -> None:  # fmt: skip
        page, full, kept = counts
        super().__init__(settings, version, page, full, kept)
        self.connection, self.location, self.identity = connection, location, identity

    def _columns(self, names: str) -> tuple[Any, ...]:
        row = self.connection.execute(f"SELECT {names} FROM pages WHERE id = %s", (self.identity,)).fetchone()
        if row is None:
            raise self.fault(f"page {self.page} is missing")
        return row

    @cached_property
    def _stored(self) -> tuple[bytes, bytes, bytes]:
        codes, scales, provenance, checksum = self._columns("codes, scales, provenance, checksum")
        reason = difference(self.settings.coding, self.kept, (codes, scales, provenance), checksum)
        if reason is not None:
            raise page_damaged(self.location, self.document, self.page, reason)
        return codes, scales, provenance

    @property
    def vectors(self) -> np.ndarray:
        """`(kept, dim)` float32."""
        coding, (codes, scales, _) = self.settings.coding, self._stored
        packed = np.frombuffer(codes, np.uint8).reshape(-1, coding.row_bytes)
        return coding.decode(packed, np.frombuffer(scales, np.float16))

    @cached_property
    def _payload(self) -> tuple[bytes, str | None, str | None]:
        thumbnail, problem, text = self._columns("thumbnail, problem, text")
        return thumbnail or b"", problem, text

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
        return self._payload[2]

    def packed_provenance(self) -> bytes:
        """Return the result of `provenance.pack`; nothing if the index stores none."""
        return self._stored[2]

    def fault(self, problem: str) -> AnchorFoldError:
        """Return the error for a page that differs from what was written."""
        return DamagedError(f"{self.location}, {self.document}: {problem}.", problem)


class PostgresCollection:
    """The live pages that one transaction sees, for exporters."""

    def __init__(self, connection: Connection, location: str, settings: IndexSettings) -> None:
        self.connection, self.location, self.settings = connection, location, settings

    def pages(self) -> Iterator[PostgresPage]:
        """All live pages that have vectors, ordered by id."""
        last = 0
        query = (
            f"SELECT page_id, page, full_vectors, vectors, {VERSION_COLUMNS} FROM live_pages WHERE vectors > 0 AND "
            "page_id > %s ORDER BY page_id LIMIT %s"
        )
        while rows := self.connection.execute(query, (last, BATCH)).fetchall():
            for row in rows:
                version = document_version(row[4:])
                yield PostgresPage(self.connection, self.location, self.settings, row[0], row[1:4], version)
            last = rows[-1][0]
