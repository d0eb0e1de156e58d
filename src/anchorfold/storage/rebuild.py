"""Rebuilding of a damaged or missing database from its intact rows and from the vector files.

The header and the schema of a damaged file are replaced by those of a new one in a working copy, and rows are looked up
one by one where a scan fails, so that damage hides only the rows that it hit. Rows are used if they match their
checksums.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import tempfile
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.errors import DamagedError, StoreError
from anchorfold.filters.values import BUILT_IN, DATE, TEXT, Plain, common_type, read_date, type_of
from anchorfold.storage.checking import Damage
from anchorfold.storage.database import Database
from anchorfold.storage.file_errors import copy_database, damaged, storage_errors, sync
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.records import DocumentVersion, public_name
from anchorfold.storage.rows import dump_metadata, insert_index
from anchorfold.storage.schema import CHECKED, DATABASE, LOST, PAGE_BITS, VECTORS, row_checksum
from anchorfold.storage.segment import OpenSegments, Segment, copy_rows, file_header, segment_path
from anchorfold.storage.snapshot import Snapshot, document_version

RESTORED = "documents that were removed or replaced after their vector file was written may be among them"
UNREADABLE = (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError, ValueError)


@dataclass
class _Salvaged:
    """What can be read of a damaged database: `rows` by table and id.

    `complete` if all documents and versions are intact: then a version that is not there was removed.
    """

    index_id: str | None = None
    commits: int = 0
    settings: IndexSettings | None = None
    complete: bool = False
    registered: Collection[int] | None = None
    columns: list[tuple[str, str]] = field(default_factory=list)
    rows: dict[str, dict[int, Any]] = field(default_factory=lambda: {table: {} for table in CHECKED})

    def versions(self) -> dict[int, DocumentVersion]:
        """Return versions by id whose document is intact as well."""
        documents = self.rows["documents"]
        rows = {i: row for i, row in self.rows["versions"].items() if row[1] in documents}
        return {i: document_version(documents[row[1]], row) for i, row in rows.items()}


def move_to_lost(folder: Path, name: str, move: Callable[[Path, Path], object] = os.rename) -> None:
    """Move a file of an index, by its path relative to the folder, to `lost/`; nothing if it does not exist."""
    source = folder / name
    target = folder / LOST / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}-{source.name}"
    with storage_errors(folder):
        if source.exists():
            target.parent.mkdir(exist_ok=True)
            move(source, target)
            sync(target.parent)


def rebuild(folder: Path) -> list[Damage]:
    """Replace the database by one made of its intact rows and the vector files. The caller holds the writer lock."""
    files, unusable = _read_files(folder)
    salvaged = _Salvaged()
    if (folder / DATABASE).exists():
        with storage_errors(folder), tempfile.TemporaryDirectory(prefix="anchorfold-repair-") as name:
            salvaged = _salvage(_working_copy(folder, Path(name)), files)
    index_id = salvaged.index_id or next((segment.header["index_id"] for segment in files.values()), None)
    files = {number: segment for number, segment in files.items() if segment.header["index_id"] == index_id}
    if index_id is None or (salvaged.settings is None and not files):
        raise damaged(folder, "neither the database nor a vector file can be read; nothing was changed")
    settings = salvaged.settings or IndexSettings.from_dict(files[max(files)].header["settings"])
    versions, restored = _choose_versions(salvaged, files)
    with storage_errors(folder):
        registered = _choose_files(folder, file_header(index_id, settings), files, versions, salvaged.registered)
        for suffix in ("", "-wal", "-journal"):
            move_to_lost(folder, f"{DATABASE}{suffix}", copy_database)
        with Database(folder).building() as connection:
            _fill(connection, salvaged, versions, registered)
            incomplete = _incomplete_pages(connection, settings)
            most = max([0, *versions, *(int(s.version.max(initial=0)) for s in files.values())])
            # Ids that were in use are never given out again.
            for table, number in (("versions", most), ("vector_files", max([0, *files, *registered]))):
                connection.execute("DELETE FROM sqlite_sequence WHERE name = ?", (table,))
                connection.execute("INSERT INTO sqlite_sequence VALUES (?, ?)", (table, number))
            insert_index(connection, index_id, settings, text_complete=False, commits=salvaged.commits)
    for number in files.keys() - registered.keys():
        move_to_lost(folder, f"{VECTORS}/{number:08}.seg")
    for name in unusable:
        move_to_lost(folder, name)
    done = f"{len(versions)} versions of documents were kept; the old file is in {LOST}/"
    damages = [Damage(DATABASE, "the database was rebuilt", repair=done)]
    if restored:
        problem = "documents were restored from vector files without their metadata"
        damages.append(Damage(DATABASE, problem, tuple(sorted(v.name for v in restored)), RESTORED))
    if incomplete:
        damages.append(Damage(DATABASE, incomplete, repair="read again by the next `anchorfold index`"))
    return damages + [Damage(name, "cannot be read", repair=f"moved to {LOST}/") for name in unusable]


def _working_copy(folder: Path, target: Path) -> Database:
    """Copy the database, with the header and the schema of a new one: both are the same in all indexes."""
    fresh, copy = Database(target), target / "copy"
    with fresh.building():
        pass
    copy.mkdir()
    # The journals first: a reader that closes the database applies and removes them. Applying one twice is harmless.
    for suffix in ("-wal", "-journal", ""):
        with suppress(FileNotFoundError):
            copy_database(folder / f"{DATABASE}{suffix}", copy / f"{DATABASE}{suffix}")
    new = bytearray(fresh.path.read_bytes())
    if len(list(copy.iterdir())) > 1:
        _apply_journals(copy / DATABASE, new[:24])
    old = bytearray((copy / DATABASE).read_bytes())
    size = int.from_bytes(new[16:18], "big")
    count = int.from_bytes(new[103:105], "big")  # cells of the first page: pointers to the other pages of the schema
    cells = [int.from_bytes(new[112 + 2 * i : 114 + 2 * i], "big") for i in range(count)]
    interior = new[100] == 5
    pages = {1, *((int.from_bytes(new[at : at + 4], "big") for at in (*cells, 108)) if interior else ())}
    counters = old[24:28] + (len(old) // size).to_bytes(4, "big") + old[32:40]  # changes, size, free pages
    for page in pages:
        old[(page - 1) * size : page * size] = new[(page - 1) * size : page * size]
    old[18:20] = b"\1\1"  # no write-ahead log
    old[24:40], old[92:96] = counters, counters[:4]
    (copy / DATABASE).write_bytes(old)
    return Database(copy)


def _apply_journals(path: Path, header: bytearray) -> None:
    """Apply the journals beside a copy of a database: they may contain the newest commits."""
    if Path(f"{path}-wal").exists():
        header[18:20] = b"\2\2"
    with open(path, "r+b") as file:
        file.write(header)  # the part that SQLite needs to open it, which is the same in all indexes
    with suppress(sqlite3.Error), closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for suffix in ("-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _salvage(database: Database, files: dict[int, Segment]) -> _Salvaged:
    salvaged = _Salvaged()
    known = {version.id: version for segment in files.values() for version in segment.documents().values()}
    pages = {identity for segment in files.values() for identity in segment.page_ids()}
    ids = {"versions": known.keys(), "documents": {version.document_id for version in known.values()}}
    with suppress(StoreError, *UNREADABLE), closing(database.connect(check=False)) as connection:
        for table in CHECKED:
            salvaged.rows[table] = _salvage_rows(connection, table, ids.get(table, pages))
        with suppress(DamagedError, *UNREADABLE):
            snapshot = Snapshot(database.folder, connection, OpenSegments(database.folder))
            salvaged.index_id, salvaged.commits = snapshot.version.index_id, snapshot.version.commits
            salvaged.settings = snapshot.settings
            with suppress(DamagedError, *UNREADABLE):
                salvaged.registered = snapshot.files.keys()
            with suppress(DamagedError, *UNREADABLE):
                salvaged.columns = list(snapshot.given_columns.items())
            with suppress(DamagedError, *UNREADABLE):
                snapshot.verify_documents()
                live = {version.id for version in salvaged.versions().values() if version.live}
                salvaged.complete = live == set(snapshot.live_ids().tolist())
    return salvaged


def _salvage_rows(connection: sqlite3.Connection, table: str, ids: Iterable[int]) -> dict[int, Any]:
    """Intact rows of a table by id: read from both ends, and those between them by the ids that the files contain."""
    rows: dict[int, Any] = {}

    def read(condition: str, *parameters: object) -> bool:
        try:
            for row in connection.execute(f"SELECT * FROM {table} {condition}", parameters):
                if row_checksum(*row[:-1]) == row[-1]:
                    rows[row[0]] = row
        except UNREADABLE:
            return False
        return True

    connection.execute("PRAGMA cell_size_check = off")  # which would refuse a whole page for one damaged row
    if not read("ORDER BY rowid"):
        read("ORDER BY rowid DESC")
        for identity in sorted(set(ids) - rows.keys()):
            read("WHERE rowid = ?", identity)
    return rows


def _read_files(folder: Path) -> tuple[dict[int, Segment], list[str]]:
    """Vector files by number, and names of those that cannot be read."""
    files: dict[int, Segment] = {}
    unusable = []
    for path in sorted((folder / VECTORS).glob("*.seg")):
        try:
            segment = Segment(path)
            segment.documents()
            if path.stem.isdecimal() and segment.header["index_id"]:
                files[int(path.stem)] = segment
        except (DamagedError, KeyError, ValueError, TypeError, OSError):
            unusable.append(f"{VECTORS}/{path.name}")
    return files, unusable


def _choose_versions(
    salvaged: _Salvaged, files: dict[int, Segment]
) -> tuple[dict[int, DocumentVersion], list[DocumentVersion]]:
    """Return the versions of the rebuilt index, and those of them that only the vector files contain."""
    versions, restored = salvaged.versions(), []
    if salvaged.complete:
        return versions, []
    described: dict[int, DocumentVersion] = {}
    pages: dict[int, int] = {}
    for _, segment in sorted(files.items()):
        described |= segment.documents()
        for version, count in zip(*np.unique(segment.version, return_counts=True), strict=True):
            pages[int(version)] = pages.get(int(version), 0) + int(count)
    live = {version.source for version in versions.values() if version.live}
    # Per document the newest version whose pages are all there, else the newest.
    for version in sorted(described.values(), key=lambda v: (pages.get(v.id, 0) >= v.pages, v.id), reverse=True):
        if version.id not in versions and version.source not in live:
            live.add(version.source)
            versions[version.id] = replace(version, live=True)
            restored.append(version)
    return versions, restored


def _choose_files(
    folder: Path, header: dict[str, Any], files: dict[int, Segment], versions: dict[int, DocumentVersion],
    registered: Collection[int] | None,
) -> dict[int, Segment]:  # fmt: skip
    """Files that together contain each page once, newest first; a file that overlaps others is rewritten."""
    chosen: dict[int, Segment] = {}
    covered: set[int] = set()
    following = max(files, default=0) + 1
    for number in sorted(files if registered is None else files.keys() & set(registered), reverse=True):
        segment = files[number]
        identities = segment.page_ids()
        needed = [row for row, i in enumerate(identities) if i >> PAGE_BITS in versions]
        fresh = [row for row in needed if identities[row] not in covered]
        covered.update(identities[row] for row in fresh)
        if len(fresh) == len(needed) and (fresh or not identities):
            chosen[number] = segment
        elif fresh:
            used = [versions[v] for v in {identities[row] >> PAGE_BITS for row in fresh}]
            path = segment_path(folder, following)
            copy_rows(path, [segment], [np.array(fresh, np.int64)], used, header)
            chosen[following] = Segment(path)
            following += 1
    return chosen


def _fill(
    connection: sqlite3.Connection, salvaged: _Salvaged, versions: dict[int, DocumentVersion], files: dict[int, Segment]
) -> None:
    def find(column: str, value: object) -> Any:
        return connection.execute(f"SELECT id FROM documents WHERE {column} = ?", (value,)).fetchone()

    for version in sorted(versions.values(), key=lambda v: (not v.live, v.id)):
        if find("path", version.source) is None:
            used = find("public_name", version.public_name)
            public = (
                public_name(version.name, lambda n: find("public_name", n) is not None) if used else version.public_name
            )
            identity = None if find("id", version.document_id) else version.document_id
            row = (identity, version.source, version.name, public, dump_metadata(version.metadata))
            connection.execute(f"INSERT INTO documents ({CHECKED['documents']}) VALUES (?, ?, ?, ?, ?)", row)
        values = (version.digest, version.size, version.modified, version.pages, version.live)
        connection.execute(
            f"INSERT INTO versions ({CHECKED['versions']}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (version.id, *find("path", version.source), *values, json.dumps(dict(version.file_metadata))),
        )
    for number, segment in files.items():
        entry = (number, segment.entry.rows, segment.entry.bytes, segment.entry.checksum)
        connection.execute("INSERT INTO vector_files VALUES (?, ?, ?, ?)", entry)
        rows = zip(segment.page_ids(), segment.kept.tolist(), segment.full.tolist(), strict=True)
        connection.executemany(
            "INSERT INTO pages (id, vectors, full_vectors) VALUES (?, ?, ?)",
            (row for row in rows if row[0] >> PAGE_BITS in versions),
        )
    for table in ("page_payloads", "texts"):
        connection.executemany(
            f"INSERT INTO {table} ({CHECKED[table]}) SELECT ?1, ?2, ?3 FROM pages WHERE id = ?1",
            (row[:-1] for row in salvaged.rows[table].values()),
        )
    types = salvaged.columns or _column_types(versions.values())
    connection.executemany("INSERT INTO metadata_columns VALUES (?, ?)", types)


def _incomplete_pages(connection: sqlite3.Connection, settings: IndexSettings) -> str:
    """How many pages have no text or no thumbnail; empty if the index stores neither or none is missing."""
    stored = {"text": ("texts", settings.text), "thumbnail": ("page_payloads", settings.thumbnails)}
    query = "SELECT count(*) FROM pages WHERE vectors > 0 AND id NOT IN (SELECT page_id FROM {} WHERE {} IS NOT NULL)"
    counts = {
        name: connection.execute(query.format(table, name)).fetchone()[0]
        for name, (table, wanted) in stored.items()
        if wanted
    }
    return ", ".join(f"pages without {name}: {count}" for name, count in counts.items() if count)


def _column_types(versions: Iterable[DocumentVersion]) -> list[tuple[str, str]]:
    """Return types of metadata columns, from the values that are left."""
    columns: dict[str, list[Plain]] = {}
    for version in versions:
        for name, value in version.metadata.items():
            columns.setdefault(name, []).append(value)
    types = []
    for name, values in sorted(columns.items()):
        dates = name not in BUILT_IN and all(isinstance(value, str) and read_date(value) for value in values)
        types.append((name, DATE if dates else common_type(map(type_of, values)) or TEXT))
    return types
