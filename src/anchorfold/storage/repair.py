"""Repair of an index: everything that is intact is kept, everything else is moved to `lost/` and reported.

A damaged or missing database is rebuilt from the rows that match their checksums and from the vector files, which
describe their documents. Metadata given by users and removals of documents are recorded only in the database.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from anchorfold.errors import StoreError
from anchorfold.storage.checking import Damage, check, derived_damages, file_damages
from anchorfold.storage.database import Database
from anchorfold.storage.file_errors import is_there, not_there, storage_errors
from anchorfold.storage.lock import writer_lock
from anchorfold.storage.rebuild import move_to_lost, rebuild
from anchorfold.storage.schema import DATABASE, LOST, PAGE_BITS, VECTORS
from anchorfold.storage.segment import Segment, copy_rows, segment_path
from anchorfold.storage.snapshot import Snapshot
from anchorfold.storage.sqlite_store import SqliteStore


def repair(folder: Path) -> list[Damage]:
    """Repair an index: what is damaged is moved to `lost/`, and the next `anchorfold index` reads it again."""
    if not folder.exists():
        raise not_there(folder)
    if not is_there(folder):
        Database(folder).connect().close()  # raises
    with writer_lock(folder, -1):
        damages = [damage for damage in check(folder) if damage.file == DATABASE]
        if damages:
            damages += rebuild(folder)
        store = SqliteStore(folder)
        with store.writing_unlocked():
            return damages + _repair_files(store)


def _repair_files(store: SqliteStore) -> list[Damage]:
    """Replace damaged vector files by ones with their intact pages; move damaged derived files away."""
    damages, derived = [], derived_damages(store.folder)
    with store.transaction() as snapshot:
        broken = file_damages(snapshot)
        pages = {identity for (identity,) in snapshot.connection.execute("SELECT id FROM pages")}
        missing = set(pages)
        for number, entry in snapshot.files.items():
            if number not in broken:
                missing.difference_update(Segment(segment_path(store.folder, number), entry).page_ids())
        for number, damage in broken.items():
            action = "these pages are read again by the next `anchorfold index`"
            if number:
                kept = _keep_intact(store, snapshot, number, missing)
                action = f"{kept} of {snapshot.files[number].rows} pages were kept"
            damages.append(replace(damage, repair=action))
        # Pages that are in no vector file are read again.
        snapshot.connection.executemany("DELETE FROM pages WHERE id = ?", ((i,) for i in sorted(missing)))
    for name in [*(f"{VECTORS}/{number:08}.seg" for number in broken if number), *(d.file for d in derived)]:
        move_to_lost(store.folder, name)
    action = f"moved to {LOST}/; built again by the next `anchorfold index`"
    return [*damages, *(replace(damage, repair=action) for damage in derived)]


def _keep_intact(store: SqliteStore, snapshot: Snapshot, number: int, missing: set[int]) -> int:
    """Register a new file with the intact `missing` pages of a damaged one instead of it; returns their number."""
    segment, chosen = None, list[int]()
    try:
        with storage_errors(store.folder):
            segment = Segment(segment_path(store.folder, number), snapshot.files[number])
        if segment.header.get("index_id") != snapshot.version.index_id:
            segment = None
    except StoreError:
        pass
    identities = [] if segment is None else segment.page_ids()
    for row in [] if segment is None else np.flatnonzero(segment.intact()).tolist():
        if identities[row] in missing:
            chosen.append(row)
            missing.remove(identities[row])
    versions = snapshot.versions_by_id({identities[row] >> PAGE_BITS for row in chosen}).values()
    store.register(
        snapshot,
        lambda path, header: (
            copy_rows(path, [segment], [np.array(chosen, np.int64)], versions, header)
            if segment is not None and chosen
            else None
        ),
        [number],
    )
    return len(chosen)
