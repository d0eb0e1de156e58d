"""Rebuilding of a damaged or missing database from its intact rows and from the vector files."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.errors import AnchorFoldError, DamagedError, NotAnIndexError, StoreError
from anchorfold.index.filters.values import DATE, TEXT, common_type, read_date, type_of
from anchorfold.index.store.checking import Damage
from anchorfold.index.store.database import Database, row_checksum
from anchorfold.index.store.durable import sync_folder
from anchorfold.index.store.faults import damaged, storage_errors
from anchorfold.index.store.merging import write_rows
from anchorfold.index.store.public_names import public_name
from anchorfold.index.store.records import BUILT_IN, DocumentVersion, Plain
from anchorfold.index.store.schema import DATABASE, LOST, PAGE_BITS, VECTORS
from anchorfold.index.store.segment import OpenSegments, Segment, file_header, segment_path
from anchorfold.index.store.settings import IndexSettings
from anchorfold.index.store.snapshot import Snapshot, payload_checksum
from anchorfold.index.store.tables import insert_index, write_document, write_version

LISTED = "documents that were removed or replaced after their vector file was written may be among them"


def move_to_lost(folder: Path, name: str) -> None:
    """Move a file of an index, by its path relative to the folder, to `lost/`."""
    source = folder / name
    target = folder / LOST / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}-{source.name}"
    with storage_errors(folder), suppress(FileNotFoundError):
        target.parent.mkdir(exist_ok=True)
        os.rename(source, target)
        sync_folder(target.parent)


@dataclass
class _Salvaged:
    """What can be read of a damaged database.

    `complete` if all documents, versions and the list of live versions match their checksums: then a version that is
    not there was removed.
    """

    index_id: str | None = None
    commits: int = 0
    settings: IndexSettings | None = None
    complete: bool = False
    registered: frozenset[int] | None = None
    versions: dict[int, DocumentVersion] = field(default_factory=dict)
    columns: list[tuple[str, str]] = field(default_factory=list)
    payloads: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    texts: dict[int, tuple[Any, ...]] = field(default_factory=dict)


def rebuild(folder: Path) -> list[Damage]:
    """Replace the database by one made of its readable rows and the vector files. The caller holds the writer lock."""
    salvaged = _read_database(folder)
    files, unusable = _read_files(folder, salvaged.index_id)
    if salvaged.settings is None and not files:
        raise damaged(folder, "neither the database nor a vector file can be read; nothing was changed")
    index_id = salvaged.index_id or next(iter(files.values())).header["index_id"]
    settings = salvaged.settings or IndexSettings.from_dict(files[max(files)].header["settings"])
    versions, restored = _choose_versions(salvaged, files)
    with storage_errors(folder):
        registered = _choose_files(folder, index_id, settings, files, versions, salvaged.registered)
        _checkpoint(folder)
        _keep_copy(folder)
        with Database(folder).building() as connection:
            _fill(connection, salvaged, versions, registered)
            most = max([0, *versions, *(int(s.version.max(initial=0)) for s in files.values())])
            _set_sequences(connection, most, max([0, *files, *registered]))
            insert_index(connection, index_id, settings, text_complete=False, commits=salvaged.commits)
    for number, segment in files.items():
        if number not in registered:
            move_to_lost(folder, f"{VECTORS}/{segment.path.name}")
    for name in unusable:
        move_to_lost(folder, name)
    damages = [
        Damage(
            DATABASE,
            "the database was rebuilt",
            repair=f"{len(versions)} versions of documents were kept; the old file is in {LOST}/",
        )
    ]
    if restored:
        names = tuple(sorted(v.name for v in restored))
        damages.append(
            Damage(DATABASE, "documents were restored from vector files without their metadata", names, LISTED)
        )
    damages += [Damage(name, "cannot be read", repair=f"moved to {LOST}/") for name in unusable]
    return damages


def _read_database(folder: Path) -> _Salvaged:
    salvaged = _Salvaged()
    try:
        connection = Database(folder).connect()
    except (DamagedError, NotAnIndexError):
        try:
            connection = Database(folder).connect_unchecked()  # its header may be all that is damaged
        except StoreError:
            return salvaged
    with closing(connection):
        with suppress(sqlite3.Error, AnchorFoldError):
            connection.execute("BEGIN")
        try:
            snapshot = Snapshot(folder, connection, OpenSegments(folder))
            salvaged.index_id, salvaged.commits = snapshot.version.index_id, snapshot.version.commits
            salvaged.settings = snapshot.settings
            with suppress(sqlite3.Error, DamagedError):
                salvaged.registered = frozenset(snapshot.files)
            with suppress(sqlite3.Error, DamagedError):
                salvaged.columns = list(snapshot.given_columns.items())
            with suppress(sqlite3.Error, DamagedError):
                salvaged.versions = {v.id: v for v in snapshot.versions()}
                live = {v.id for v in salvaged.versions.values() if v.live}
                salvaged.complete = live == set(snapshot.live_ids().tolist())
        except (sqlite3.Error, DamagedError):
            pass
        if not salvaged.complete:
            salvaged.versions = _readable_versions(connection)
        salvaged.payloads = {r[0]: r for r in _rows(connection, "page_payloads", 4) if payload_checksum(*r[:3]) == r[3]}
        salvaged.texts = {r[0]: r for r in _rows(connection, "texts", 4) if row_checksum(*r[:3]) == r[3]}
    return salvaged


def _rows(connection: sqlite3.Connection, table: str, width: int) -> Iterator[tuple[Any, ...]]:
    """Rows of a table that can be read: from the front, then from the back, as far as each goes."""
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.Error, UnicodeDecodeError, OverflowError):
            for row in connection.execute(f"SELECT * FROM {table} ORDER BY rowid {order}"):
                if len(row) == width:
                    yield row


def _readable_versions(connection: sqlite3.Connection) -> dict[int, DocumentVersion]:
    documents = {r[0]: r for r in _rows(connection, "documents", 6) if row_checksum(*r[:5]) == r[5]}
    versions = {}
    for row in _rows(connection, "versions", 9):
        if row_checksum(*row[:8]) == row[8] and row[1] in documents:
            _, path, name, public, metadata, _ = documents[row[1]]
            identity, document, digest, size, modified, pages, live, file_metadata, _ = row
            versions[identity] = DocumentVersion(
                identity, document, path, name, public, digest, size, modified, pages, bool(live),
                json.loads(metadata), json.loads(file_metadata),
            )  # fmt: skip
    return versions


def _read_files(folder: Path, index_id: str | None) -> tuple[dict[int, Segment], list[str]]:
    """Vector files of an index by number, and names of those that cannot be read."""
    files: dict[int, Segment] = {}
    unusable = []
    for path in sorted((folder / VECTORS).glob("*.seg")):
        try:
            segment = Segment(path)
            segment.documents()
            index_id = index_id or segment.header["index_id"]
            if path.stem.isdecimal() and segment.header["index_id"] == index_id:
                files[int(path.stem)] = segment
        except (DamagedError, KeyError, ValueError, OSError):
            unusable.append(f"{VECTORS}/{path.name}")
    return files, unusable


def _choose_versions(
    salvaged: _Salvaged, files: dict[int, Segment]
) -> tuple[dict[int, DocumentVersion], list[DocumentVersion]]:
    """The versions of the rebuilt index, and those of them that only the vector files know."""
    if salvaged.complete:
        return salvaged.versions, []
    described: dict[int, DocumentVersion] = {}
    pages: dict[int, int] = {}
    for number in sorted(files):
        segment = files[number]
        for version, count in zip(*np.unique(segment.version, return_counts=True), strict=True):
            pages[int(version)] = pages.get(int(version), 0) + int(count)
        for version, known in segment.documents().items():
            described[version] = DocumentVersion(
                version, known["document_id"], known["path"], known["name"], known["public_name"], known["digest"],
                known["size"], known["modified"], known["pages"], False, {}, known["file_metadata"],
            )  # fmt: skip
    versions = dict(salvaged.versions)
    live = {v.source for v in versions.values() if v.live}
    restored = []
    # Per document the newest version whose pages are all there, else the newest.
    for version in sorted(described.values(), key=lambda v: (pages.get(v.id, 0) >= v.pages, v.id), reverse=True):
        if version.id not in versions and version.source not in live:
            live.add(version.source)
            versions[version.id] = replace(version, live=True)
            restored.append(versions[version.id])
    return versions, restored


def _choose_files(
    folder: Path, index_id: str, settings: IndexSettings, files: dict[int, Segment],
    versions: dict[int, DocumentVersion], registered: frozenset[int] | None,
) -> dict[int, Segment]:  # fmt: skip
    """Files that together contain each page once, newest first; a file that overlaps others is rewritten."""
    chosen: dict[int, Segment] = {}
    covered: set[int] = set()
    following = max(files, default=0) + 1
    for number in sorted(files, reverse=True):
        if registered is not None and number not in registered:
            continue
        segment = files[number]
        identities = segment.page_ids()
        needed = [row for row, i in enumerate(identities) if i >> PAGE_BITS in versions]
        fresh = [row for row in needed if identities[row] not in covered]
        covered.update(identities[row] for row in fresh)
        if len(fresh) == len(needed) and fresh:
            chosen[number] = segment
        elif fresh:
            used = {v: versions[v] for v in {identities[row] >> PAGE_BITS for row in fresh}}
            path = segment_path(folder, following)
            write_rows(path, [segment], [np.array(fresh, np.int64)], used, file_header(index_id, settings))
            chosen[following] = Segment(path)
            following += 1
    return chosen


def _checkpoint(folder: Path) -> None:
    """Copy the write-ahead log into the old database: a repair that is interrupted after removing it loses nothing."""
    with suppress(sqlite3.Error, StoreError), closing(Database(folder).connect(write=True)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _keep_copy(folder: Path) -> None:
    """Copy the old database to `lost/`, and remove its write-ahead log, which must not be applied to a new one."""
    stamp = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    (folder / LOST).mkdir(exist_ok=True)
    companions = [f"{DATABASE}{suffix}" for suffix in ("-wal", "-journal")]
    for name in (DATABASE, *companions):
        if (folder / name).exists():
            shutil.copyfile(folder / name, folder / LOST / f"{stamp}-{name}")
    sync_folder(folder / LOST)
    for name in (*companions, f"{DATABASE}-shm"):
        (folder / name).unlink(missing_ok=True)


def _fill(
    connection: sqlite3.Connection, salvaged: _Salvaged, versions: dict[int, DocumentVersion], files: dict[int, Segment]
) -> None:
    taken: set[str] = set()
    documents: dict[str, int] = {}
    for version in sorted(versions.values(), key=lambda v: (not v.live, v.id)):
        if version.source not in documents:
            public = (
                version.public_name
                if version.public_name not in taken
                else public_name(version.name, taken.__contains__)
            )
            taken.add(public)
            free = version.document_id not in documents.values()
            columns = "id, path, name, public_name, metadata, checksum"
            identity = connection.execute(
                f"INSERT INTO documents ({columns}) VALUES (?, ?, ?, ?, '{{}}', 0)",
                (version.document_id if free else None, version.source, version.name, public),
            ).lastrowid
            assert identity is not None
            documents[version.source] = identity
            write_document(connection, identity, version.source, version.name, public, version.metadata)
        document = documents[version.source]
        connection.execute(
            "INSERT INTO versions VALUES (?, ?, ?, 0, 0, 0, 0, '{}', 0)", (version.id, document, version.digest)
        )
        write_version(connection, version.id, document, version)
    pages: set[int] = set()
    for number, segment in files.items():
        entry = segment.entry
        connection.execute(
            "INSERT INTO vector_files VALUES (?, ?, ?, ?)", (number, entry.rows, entry.bytes, entry.checksum)
        )
        rows = zip(segment.page_ids(), segment.kept.tolist(), segment.full.tolist(), strict=True)
        kept = [row for row in rows if row[0] >> PAGE_BITS in versions]
        connection.executemany("INSERT INTO pages (id, vectors, full_vectors) VALUES (?, ?, ?)", kept)
        pages.update(row[0] for row in kept)
    for table, stored in (("page_payloads", salvaged.payloads), ("texts", salvaged.texts)):
        usable = (row for identity, row in stored.items() if identity in pages)
        connection.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", usable)
    connection.execute(
        "UPDATE pages SET "
        "thumbnail_bytes = coalesce((SELECT length(thumbnail) FROM page_payloads WHERE page_id = pages.id), 0), "
        "text_bytes = coalesce((SELECT length(CAST(text AS BLOB)) FROM texts WHERE page_id = pages.id), 0)"
    )
    types = salvaged.columns or _column_types(versions.values())
    connection.executemany("INSERT INTO metadata_columns VALUES (?, ?)", types)
    connection.execute("INSERT INTO text_index (text_index) VALUES ('rebuild')")


def _column_types(versions: Iterable[DocumentVersion]) -> list[tuple[str, str]]:
    """Types of metadata columns, from the values that are left."""
    values: dict[str, list[Plain]] = {}
    for version in versions:
        for name, value in version.metadata.items():
            values.setdefault(name, []).append(value)
    types = []
    for name, some in sorted(values.items()):
        kind = common_type(type_of(value) for value in some) or TEXT
        dates = name not in BUILT_IN and all(isinstance(value, str) and read_date(value) for value in some)
        types.append((name, DATE if dates else kind))
    return types


def _set_sequences(connection: sqlite3.Connection, versions: int, files: int) -> None:
    """Ids that were in use are never given out again."""
    for table, most in (("versions", versions), ("vector_files", files), ("documents", 0)):
        connection.execute(
            "INSERT INTO sqlite_sequence SELECT ?, 0 WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = ?)",
            (table, table),
        )
        connection.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = ?", (most, table))
