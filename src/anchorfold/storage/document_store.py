"""Documents of an index: their state, and commits that add, replace, move and remove them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace

from anchorfold.filters.values import Plain
from anchorfold.storage.column_file import write_columns
from anchorfold.storage.records import DocumentState, PageRow, PageText, document_states
from anchorfold.storage.rows import insert_pages, insert_payload, insert_text, metadata_changes, version_ids
from anchorfold.storage.schema import page_id, page_range
from anchorfold.storage.segment import page_columns
from anchorfold.storage.snapshot import PAGES, Snapshot
from anchorfold.storage.sqlite_store import SqliteStore

STATES = (
    f"SELECT d.path, d.name, v.live, v.digest, {PAGES}, v.size, v.modified, v.pages "
    "FROM versions v JOIN documents d ON d.id = v.document_id"
)
BY_PATH = "document_id = (SELECT id FROM documents WHERE path = ?)"


class DocumentStore(SqliteStore):
    """The documents of an index in a folder."""

    def documents(self) -> dict[str, DocumentState]:
        """Return the state of every document by path, live or staged, with numbers of stored pages."""

        def read(snapshot: Snapshot) -> dict[str, DocumentState]:
            snapshot.verify_documents()
            return document_states(snapshot.connection.execute(STATES))

        return self.read(read)

    def stored_pages(self, sources: Sequence[str]) -> dict[str, dict[str, set[int]]]:
        """Return numbers of stored pages of some documents, by path and digest."""
        return self.read(lambda snapshot: stored_pages(snapshot, sources))

    def _execute(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run a statement for some rows in one commit; none without rows."""
        if rows := list(rows):
            with self.transaction() as snapshot:
                snapshot.connection.executemany(statement, rows)

    def append(self, rows: Sequence[PageRow]) -> None:
        """Add pages in one commit; documents that are new are inserted with them."""
        if not rows:
            return
        with self.transaction() as snapshot:
            ids = version_ids(snapshot.connection, rows)
            columns = page_columns(rows, ids, snapshot.versions_by_id(ids), snapshot.settings)
            self.register(snapshot, lambda path, header: write_columns(path, len(rows), columns, header))
            insert_pages(snapshot, rows, ids)
        self._merge_tiers()

    def promote(self, source: str, digest: str, size: int, modified: int) -> None:
        """Replace a document by its staged version in one commit; size and time are those of the file now."""
        with self.transaction() as snapshot:
            execute = snapshot.connection.execute
            execute(f"DELETE FROM versions WHERE {BY_PATH} AND digest != ?", (source, digest))
            execute(f"UPDATE versions SET live = 1, size = ?, modified = ? WHERE {BY_PATH}", (size, modified, source))
            for (version,) in execute(f"SELECT id FROM versions WHERE {BY_PATH}", (source,)).fetchall():
                execute(
                    "UPDATE index_info SET text_complete = 0 WHERE EXISTS (SELECT 1 FROM pages WHERE id >= ? "
                    "AND id < ? AND vectors > 0 AND id NOT IN (SELECT page_id FROM texts))",
                    page_range(version),
                )

    def touch(self, source: str, size: int, modified: int) -> None:
        """Store the size and time of a document whose file was written again with the same content."""
        statement = f"UPDATE versions SET size = ?, modified = ? WHERE {BY_PATH} AND live"
        self._execute(statement, [(size, modified, source)])

    def move(self, sources: Mapping[str, str]) -> None:
        """Change paths of documents, from old to new, in one commit."""
        if not sources:
            return
        with self.transaction() as snapshot:
            ids = [v.id for old in sources for v in snapshot.versions("d.path = ?", (old,))]
            moves = ((new, old) for old, new in sources.items())
            snapshot.connection.executemany("UPDATE documents SET path = ? WHERE path = ?", moves)
            # A file without pages records the new paths, in case that the database has to be rebuilt.
            documents = snapshot.versions_by_id(ids)
            columns = page_columns([], [], documents, snapshot.settings)
            if documents:
                self.register(snapshot, lambda path, header: write_columns(path, 0, columns, header))

    def remove(self, sources: Iterable[str]) -> None:
        """Delete documents in one commit."""
        self._execute(f"DELETE FROM versions WHERE {BY_PATH}", [(source,) for source in sorted(set(sources))])

    def drop_staged(self, sources: Iterable[str]) -> None:
        """Delete versions of documents that never became live, in one commit."""
        statement = f"DELETE FROM versions WHERE {BY_PATH} AND NOT live"
        self._execute(statement, [(source,) for source in sorted(set(sources))])

    def set_metadata(self, values: Mapping[str, Mapping[str, Plain | None]], types: Mapping[str, str]) -> int:
        """Set metadata values by path and column in one commit; None removes a value.

        Args:
            values: by path and column.
            types: types of all columns in it. A column that no document uses any more is removed.

        Returns:
            The number of documents that changed.
        """
        if not values and not types:
            return 0
        documents, unused, known = self.read(lambda snapshot: metadata_changes(snapshot, values, types))
        if not documents and not unused and types.items() <= known.items():
            return 0  # no commit: open readers keep what they have in memory
        with self.transaction() as snapshot:
            connection = snapshot.connection
            connection.executemany(
                "UPDATE documents SET metadata = ? WHERE path = ?", ((m, path) for path, m in documents.items())
            )
            upsert = "INSERT INTO metadata_columns VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET type = excluded.type"
            connection.executemany(upsert, types.items())
            connection.executemany("DELETE FROM metadata_columns WHERE name = ?", ((name,) for name in unused))
        return len(documents)

    def enable_text(self, ocr: bool) -> None:
        """Store the text of pages from now on, with `ocr` also of pages without a text layer."""
        settings = replace(self.settings, text=True, ocr=ocr)
        self._execute("UPDATE index_info SET settings = ?, text_complete = 0", [(json.dumps(asdict(settings)),)])
        self.refresh()

    def put_texts(
        self, source: str, digest: str, texts: Mapping[int, PageText], thumbnails: Mapping[int, bytes] | None = None
    ) -> None:
        """Store texts (and missing thumbnails) of pages of a live document, by page number, in one commit."""
        with self.transaction() as snapshot:
            for version in list(snapshot.versions("d.path = ? AND v.digest = ? AND v.live", (source, digest))):
                for number, text in texts.items():
                    insert_text(snapshot.connection, page_id(version.id, number), text)
                for number, image in (thumbnails or {}).items():
                    insert_payload(snapshot.connection, page_id(version.id, number), image, None)

    def set_text_complete(self) -> None:
        """Record that every stored page has its text."""
        self._execute("UPDATE index_info SET text_complete = 1", [()])


def stored_pages(snapshot: Snapshot, sources: Iterable[str]) -> dict[str, dict[str, set[int]]]:
    """Return numbers of stored pages of some documents in a commit, by path and digest."""
    stored: dict[str, dict[str, set[int]]] = {}
    query = "SELECT number FROM pages WHERE id >= ? AND id < ?"
    for source in sources:
        for version in snapshot.versions("d.path = ?", (source,)):
            rows = snapshot.connection.execute(query, page_range(version.id))
            stored.setdefault(source, {})[version.digest] = {number for (number,) in rows}
    return stored
