"""Commits that add, replace, move and remove documents of an index in Qdrant."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from anchorfold.databases.qdrant_engine import all_of, matches, models
from anchorfold.databases.qdrant_head import Head
from anchorfold.databases.qdrant_layout import (
    DocumentRecord,
    VersionRecord,
    batches,
    index_columns,
    metadata_path,
    of_type,
    page_point,
    pages_of,
    point_id,
    require_size,
    text_fields,
    thumbnail_fields,
)
from anchorfold.databases.qdrant_records import QdrantRecords, groups, is_empty, live_version, readable_pages
from anchorfold.databases.qdrant_text import SPARSE, term_weights
from anchorfold.filters.values import Plain
from anchorfold.storage.provenance import pack
from anchorfold.storage.records import PageRow, PageText, merged_metadata, public_name


class QdrantDocuments(QdrantRecords):
    """The documents of an index. Readers may use it in several threads."""

    @contextmanager
    def writing(
        self, wait: float = -1, waiting: Callable[[str], None] | None = None, stop: Callable[[], bool] | None = None,
        sources: Collection[str] | None = None,
    ) -> Iterator[None]:  # fmt: skip
        """Hold a lease; what a writer that was killed has left is removed first."""
        self.engine.require_version()
        with self.leases.held(wait, waiting, stop, sources):
            self.refresh()
            self._remove_dead(sources)
            yield

    def commit(self, change: Callable[[Head], Head], documents: Collection[int] | None = ()) -> Head:
        """Replace the head; the caller holds a lease."""
        self.leases.require()
        return self.head.commit(change, documents)

    def append(self, rows: Sequence[PageRow]) -> None:
        """Add pages, live or staged: first their documents, then what is invisible, then the points."""
        if not rows:
            return
        self.leases.require()
        for row in rows:
            require_size(row)
        records, head = self.records([row.source for row in rows])
        changed: dict[str, DocumentRecord] = {}
        for row in {(row.source, row.digest): row for row in rows}.values():
            record = records.get(row.source) or self._create(row)
            after = replace(record, metadata=merged_metadata(record.metadata, row.metadata))
            if after.find(row.digest) is None:
                new = VersionRecord(
                    secrets.token_hex(6), row.digest, row.size, row.modified, row.pages, dict(row.file_metadata)
                )
                after = after.with_version(new)
            records[row.source] = after
            if after != record or not record.versions:
                changed[row.source] = after
        self.engine.upsert([record.point() for record in changed.values()])
        keys = {(row.source, row.digest): _key(records[row.source], row.digest) for row in rows}
        staged = {keys[row.source, row.digest]: records[row.source].document_id for row in rows if not row.live}
        unlisted = {key: document for key, document in staged.items() if key not in head.staged}
        if unlisted:
            self.commit(lambda h: replace(h, staged={**h.staged, **unlisted}), unlisted.values())
        points = []
        for row in rows:
            record, version = records[row.source], records[row.source].find(row.digest)
            assert version is not None
            provenance = pack(row.encoded) if row.encoded is not None and self.settings.provenance else b""
            points.append(page_point(self.settings, record, version, row, row.live, provenance))
        for batch in batches(points):
            self.leases.require()
            self.engine.upsert(batch)
        complete = all(row.text is not None or row.encoded is None or not row.live for row in rows)
        self.commit(lambda h: replace(h, text_complete=h.text_complete and complete))

    def _create(self, row: PageRow) -> DocumentRecord:
        """Insert a document under a public name that no other has: its id follows from the name."""
        created = [DocumentRecord(0, row.source, row.document, "", {})]

        def taken(name: str) -> bool:
            created[0] = replace(created[0], document_id=secrets.randbits(52), public_name=name)
            self.engine.upsert([created[0].point()], only_if=all_of(of_type("none")))
            stored = self.engine.retrieve([created[0].id], ["document_id"])
            return bool(stored[0].payload["document_id"] != created[0].document_id)

        public_name(row.document, taken)
        return created[0]

    def promote(self, source: str, digest: str, size: int, modified: int) -> None:
        """Replace a document by its staged version: one update of the head."""
        record = self.records([source])[0].get(source)
        version = None if record is None else record.find(digest)
        if record is None or version is None:
            return
        version = replace(version, size=size, modified=modified)
        record = record.with_version(version)
        self.leases.require()
        self.engine.upsert([record.point()])
        self.engine.set_payload({**record.page_fields(version), "live": True}, pages_of([version.version]))
        without_text = all_of(is_empty("text"), *readable_pages(), matches("version", version.version))
        complete = self.engine.count(without_text) == 0
        others = {v.version: record.document_id for v in record.versions if v.version != version.version}

        def switch(head: Head) -> Head:
            staged = {k: d for k, d in head.staged.items() if k != version.version and k not in others}
            return replace(
                head, staged=staged, dead={**head.dead, **others}, text_complete=head.text_complete and complete
            )

        self.commit(switch, [record.document_id])
        self._delete_versions([record], others)

    def touch(self, source: str, size: int, modified: int) -> None:
        """Store another size and time of a document with the same content."""
        records, head = self.records([source])
        if (record := records.get(source)) is None or (live := live_version(record, head)) is None:
            return
        record = record.with_version(replace(live, size=size, modified=modified))
        self._update([record])

    def move(self, sources: Mapping[str, str]) -> None:
        """Change paths of documents, from old to new."""
        records = self.records(list(sources))[0]
        self._update([replace(record, source=sources[source]) for source, record in records.items()])

    def _update(self, records: Sequence[DocumentRecord]) -> None:
        """Store changed documents, their pages first: after an interruption the next run repeats the change."""
        if not records:
            return
        self.leases.require()
        for record in records:
            for version in record.versions:
                self.engine.set_payload(record.page_fields(version), pages_of([version.version]))
        self.engine.upsert([record.point() for record in records])
        self.commit(lambda head: head)

    def remove(self, sources: Sequence[str]) -> None:
        """Delete documents: they become invisible at once, then their points are deleted."""
        records = list(self.records(sources)[0].values())
        self._drop(records, {v.version: record.document_id for record in records for v in record.versions})

    def drop_staged(self, sources: Sequence[str]) -> None:
        """Delete staged versions of documents."""
        records, head = self.records(sources)
        staged = {v.version: r.document_id for r in records.values() for v in r.versions if v.version in head.staged}
        self._drop([r for r in records.values() if any(v.version in staged for v in r.versions)], staged)

    def _drop(self, records: Sequence[DocumentRecord], versions: Mapping[str, int]) -> None:
        if not records:
            return

        def hide(head: Head) -> Head:
            staged = {k: d for k, d in head.staged.items() if k not in versions}
            return replace(head, staged=staged, dead={**head.dead, **versions})

        self.commit(hide, versions.values())
        self._delete_versions(records, versions)

    def _delete_versions(self, records: Sequence[DocumentRecord], versions: Mapping[str, int]) -> None:
        """Delete the points of dead versions, and documents without other versions."""
        for keys in groups(versions):
            self.engine.delete(pages_of(keys))
        rest = [replace(r, versions=tuple(v for v in r.versions if v.version not in versions)) for r in records]
        self.engine.upsert([record.point() for record in rest if record.versions])
        if empty := [record.id for record in rest if not record.versions]:
            self.engine.delete(all_of(models.HasIdCondition(has_id=list(empty))))

    def _remove_dead(self, sources: Collection[str] | None) -> None:
        """Delete what a writer that was killed has left, and forget the dead versions of these documents."""
        head = self.head.read()
        if not head.dead:
            return
        condition = all_of(of_type("document"), matches("document_id", sorted(set(head.dead.values()))))
        records = [DocumentRecord.of(point.payload) for point in self.engine.scroll(condition)]
        busy = set() if sources is None else {r.document_id for r in records if r.source not in sources}
        dead = {version: document for version, document in head.dead.items() if document not in busy}
        if not dead:
            return
        self._delete_versions([r for r in records if any(v.version in dead for v in r.versions)], dead)
        self.commit(lambda h: replace(h, dead={v: d for v, d in h.dead.items() if v not in dead}), dead.values())

    # Metadata and text.

    def set_metadata(self, values: Mapping[str, Mapping[str, Plain | None]], types: Mapping[str, str]) -> int:
        """Set metadata values by path and column; returns the number of documents that changed."""
        if not values and not types:
            return 0
        records, head = self.records(list(values))
        changed = []
        for source, record in records.items():
            after = merged_metadata(record.metadata, values[source])
            if _typed(after) != _typed(record.metadata):
                changed.append(replace(record, metadata=after))
        cleared = {name for given in values.values() for name, value in given.items() if value is None} - types.keys()
        if not changed and types.items() <= head.columns.items() and not cleared & head.columns.keys():
            return 0
        index_columns(self.engine, {name: kind for name, kind in types.items() if name not in head.columns})
        if changed:
            self._update(changed)
        unused = {name for name in cleared & head.columns.keys() if not self.engine.count(with_column(name))}
        if unused or not types.items() <= head.columns.items():
            self.commit(
                lambda h: replace(h, columns={n: k for n, k in {**h.columns, **types}.items() if n not in unused})
            )
        return len(changed)

    def documents_with(self, column: str) -> set[str]:
        """Return paths of documents that have a value in a metadata column."""
        return {point.payload["source"] for point in self.engine.scroll(with_column(column), ["source"])}

    def enable_text(self, ocr: bool) -> None:
        """Store the text of pages from now on."""
        settings = asdict(replace(self.settings, text=True, ocr=ocr))
        self.commit(lambda head: replace(head, settings=settings, text_complete=False))
        self.refresh()

    def set_text_complete(self) -> None:
        """Record that every stored page has its text."""
        self.commit(lambda head: replace(head, text_complete=True))

    def put_texts(
        self, source: str, digest: str, texts: Mapping[int, PageText], thumbnails: Mapping[int, bytes] | None = None
    ) -> None:
        """Store texts and thumbnails of pages of a live document."""
        records, head = self.records([source])
        record = records.get(source)
        live = None if record is None else live_version(record, head)
        if record is None or live is None or live.digest != digest:
            return
        self.leases.require()
        operations: list[Any] = []
        for number, text in texts.items():
            ids = [point_id(live.version, number)]
            operations.append(_set_fields(ids, text_fields(text)))
            weights = term_weights(text.text)
            if weights:
                vector = {SPARSE: models.SparseVector(indices=list(weights), values=list(weights.values()))}
                update = models.UpdateVectors(points=[models.PointVectors(id=ids[0], vector=vector)])
                operations.append(models.UpdateVectorsOperation(update_vectors=update))
            else:
                removed = models.DeleteVectors(points=ids, vector=[SPARSE])
                operations.append(models.DeleteVectorsOperation(delete_vectors=removed))
        for number, image in (thumbnails or {}).items():
            operations.append(_set_fields([point_id(live.version, number)], thumbnail_fields(image)))
        if operations:
            self.engine.call("batch_update_points", operations, wait=True)
        self.commit(lambda h: h)


def _key(record: DocumentRecord, digest: str) -> str:
    version = record.find(digest)
    assert version is not None
    return version.version


def _typed(values: Mapping[str, Plain]) -> dict[str, tuple[type, Plain]]:
    return {name: (type(value), value) for name, value in values.items()}  # true, 1 and 1.0 differ


def with_column(name: str) -> models.Filter:
    """Return a filter for documents that have a value in a metadata column."""
    return all_of(of_type("document"), none_of=[is_empty(metadata_path(name))])


def _set_fields(ids: Sequence[str], values: Mapping[str, Any]) -> Any:
    return models.SetPayloadOperation(set_payload=models.SetPayload(payload=dict(values), points=list(ids)))
