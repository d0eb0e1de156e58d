"""Repair of an index: everything that is intact is kept, everything else is moved to `lost/` and reported.

A damaged or missing database is rebuilt from the rows that match their checksums and from the vector files, which
describe their documents. Metadata given by users and removals of documents are recorded only in the database.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from anchorfold.errors import StoreError
from anchorfold.index.store.checking import Damage, check, derived_damages, file_damages
from anchorfold.index.store.column_file import FileEntry
from anchorfold.index.store.database import Database
from anchorfold.index.store.faults import is_there, not_there, storage_errors
from anchorfold.index.store.lock import writer_lock
from anchorfold.index.store.merging import write_rows
from anchorfold.index.store.rebuilding import move_to_lost, rebuild
from anchorfold.index.store.schema import DATABASE, PAGE_BITS, VECTORS
from anchorfold.index.store.segment import OpenSegments, Segment, segment_path
from anchorfold.index.store.snapshot import Snapshot
from anchorfold.index.store.sqlite_store import SqliteStore
from anchorfold.index.store.tables import unindex_texts


def repair(folder: Path) -> list[Damage]:
    """Repair an index: what is damaged is moved to `lost/`, and the next `anchorfold index` reads it again."""
    if not folder.exists():
        raise not_there(folder)
    if not is_there(folder):
        Database(folder).connect().close()  # raises
    with writer_lock(folder, -1):
        damages = check(folder)
        if any(damage.file == DATABASE for damage in damages):
            damages = [*damages, *rebuild(folder)]
        store = SqliteStore(folder)
        with store.writing_unlocked():
            damages = [d for d in damages if d.file == DATABASE] + _repair_files(store)
    return damages


def _repair_files(store: SqliteStore) -> list[Damage]:
    """Replace damaged vector files by ones with their intact pages; move damaged derived files away."""
    damages = []
    with store.transaction() as connection:
        snapshot = Snapshot(store.folder, connection, OpenSegments(store.folder))
        broken, derived = file_damages(snapshot), derived_damages(snapshot)
        stored = {
            identity
            for number, entry in snapshot.files.items()
            if number not in broken
            for identity in Segment(segment_path(store.folder, number), entry).page_ids()
        }
        pages = {identity for (identity,) in connection.execute("SELECT id FROM pages")}
        for number, damage in broken.items():
            entry, kept = snapshot.files.get(number), 0
            if entry is not None:
                kept = _salvage(store, connection, snapshot, number, entry, pages, stored)
                damages.append(replace(damage, repair=f"{kept} of {entry.rows} pages were kept"))
            else:
                damages.append(replace(damage, repair="these pages are read again by the next `anchorfold index`"))
        _delete_pages(connection, sorted(pages - stored))
    for name in [*(f"{VECTORS}/{number:08}.seg" for number in broken if number), *(d.file for d in derived)]:
        move_to_lost(store.folder, name)
    return [
        *damages,
        *(replace(d, repair="moved to lost/; built again by the next `anchorfold index`") for d in derived),
    ]


def _salvage(
    store: SqliteStore, connection: sqlite3.Connection, snapshot: Snapshot, number: int, entry: FileEntry,
    pages: set[int], stored: set[int],
) -> int:  # fmt: skip
    """Register a new file with the intact pages of a damaged one instead of it; returns how many there are."""
    try:
        with storage_errors(store.folder):
            segment = Segment(segment_path(store.folder, number), entry)
        if segment.header.get("index_id") != snapshot.version.index_id:
            raise segment.fault("it belongs to another index")
    except StoreError:
        connection.execute("DELETE FROM vector_files WHERE id = ?", (number,))
        return 0
    identities, chosen = segment.page_ids(), []
    for row in np.flatnonzero(segment.intact()).tolist():
        if identities[row] in pages and identities[row] not in stored:
            chosen.append(row)
            stored.add(identities[row])
    documents = snapshot.versions_by_id({identities[row] >> PAGE_BITS for row in chosen})
    rows = [np.array(chosen, np.int64)]
    store.register(connection, lambda path, header: write_rows(path, [segment], rows, documents, header), [number])
    return len(chosen)


def _delete_pages(connection: sqlite3.Connection, identities: Sequence[int]) -> None:
    """Delete pages that are in no vector file, so that they are read again."""
    for version in sorted({identity >> PAGE_BITS for identity in identities}):
        lost = [identity for identity in identities if identity >> PAGE_BITS == version]
        (live,) = connection.execute("SELECT live FROM versions WHERE id = ?", (version,)).fetchone() or (0,)
        if live:
            unindex_texts(connection, version, lost)
        for table, column in (("texts", "page_id"), ("page_payloads", "page_id"), ("pages", "id")):
            connection.executemany(f"DELETE FROM {table} WHERE {column} = ?", ((i,) for i in lost))
