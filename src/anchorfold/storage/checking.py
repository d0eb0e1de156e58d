"""Verification of an index: every checksum, count and reference."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anchorfold.errors import DamagedError, StoreError
from anchorfold.storage.column_file import ColumnFile
from anchorfold.storage.database import Database, has_schema, transaction
from anchorfold.storage.file_errors import not_there, sqlite_errors, storage_errors
from anchorfold.storage.schema import CHECKED, DATABASE, PAGE_BITS, VECTORS, row_checksum
from anchorfold.storage.segment import OpenSegments, Segment, segment_path
from anchorfold.storage.snapshot import Snapshot

ORPHANS = {
    "pages": f"SELECT count(*) FROM pages WHERE id >> {PAGE_BITS} NOT IN (SELECT id FROM versions)",
    "documents": "SELECT count(*) FROM documents WHERE id NOT IN (SELECT document_id FROM versions)",
}


@dataclass(frozen=True)
class Damage:
    """Something in an index that differs from what was written.

    Attributes:
        file: the file, relative to the index.
        problem: what is wrong.
        documents: names of the documents that are affected.
        repair: what the repair did about it.
    """

    file: str
    problem: str
    documents: tuple[str, ...] = ()
    repair: str = ""

    def __post_init__(self) -> None:
        name = self.file.rpartition("/")[2]
        object.__setattr__(self, "problem", self.problem.removeprefix(f"{name}: "))


def check(folder: Path) -> list[Damage]:
    """Verify an index without changing it."""
    if not folder.exists():
        raise not_there(folder)
    database = Database(folder)
    try:
        with database.reading() as connection:
            snapshot = Snapshot(folder, connection, OpenSegments(folder))
            damages = [Damage(DATABASE, problem) for problem in _database_problems(snapshot)]
            files = {} if damages else file_damages(snapshot)
            derived = [] if damages else derived_damages(folder)
        if files:  # a writer may have merged some of them in the meantime
            with database.reading() as connection:
                registered = Snapshot(folder, connection, OpenSegments(folder)).files
            files = {number: damage for number, damage in files.items() if not number or number in registered}
        damages += [*files.values(), *derived]
    except DamagedError as error:
        damages = [Damage(DATABASE, error.problem)]
    if not damages and (problem := _full_text_problem(database)):
        damages = [Damage(DATABASE, problem)]
    return damages


def _database_problems(snapshot: Snapshot) -> Iterator[str]:
    """What is wrong in the database, except in its full-text index."""
    steps: list[Callable[[Snapshot], str | None]] = [_structure, _info, _rows, _orphans]
    for step in steps:
        try:
            with storage_errors(snapshot.folder):
                problem = step(snapshot)
        except DamagedError as error:
            problem = error.problem
        if problem:
            yield problem


def _structure(snapshot: Snapshot) -> str | None:
    for (result,) in snapshot.connection.execute("PRAGMA integrity_check(1)"):
        if result != "ok":
            return str(result)
    return None if has_schema(snapshot.connection) else "its schema was changed"


def _info(snapshot: Snapshot) -> None:
    _ = snapshot.live_ids(), snapshot.files, snapshot.given_columns  # raise if they do not match their checksums


def _rows(snapshot: Snapshot) -> str | None:
    for table in CHECKED:
        for row in snapshot.connection.execute(f"SELECT * FROM {table}"):
            if row_checksum(*row[:-1]) != row[-1]:
                return f"row {row[0]} of {table} does not match its checksum"
    return None


def _orphans(snapshot: Snapshot) -> str | None:
    if tables := {table for table, *_ in snapshot.connection.execute("PRAGMA foreign_key_check")}:
        return f"a row of {min(tables)} belongs to nothing"
    for table, query in ORPHANS.items():
        if count := snapshot.connection.execute(query).fetchone()[0]:
            return f"{count} rows of {table} belong to nothing"
    return None


def _full_text_problem(database: Database) -> str | None:
    """Return whether the full-text index differs from the texts. The check of FTS5 is a write that is rolled back."""
    try:
        connection = database.connect(write=True)
    except StoreError:
        return None  # read-only
    try:
        with sqlite_errors(database.folder), transaction(connection):
            connection.execute("INSERT INTO text_index (text_index, rank) VALUES ('integrity-check', 1)")
            connection.execute("ROLLBACK")
            connection.execute("BEGIN")
    except DamagedError as error:
        return f"the full-text index does not match the texts ({error.problem})"
    except StoreError as error:
        # Otherwise another process is writing for a long time.
        refused = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY
        permitted = all(os.access(path, os.W_OK) for path in (database.folder, database.path))
        return "SQLite cannot write to it although the permissions allow it" if refused and permitted else None
    finally:
        connection.close()
    return None


def file_damages(snapshot: Snapshot) -> dict[int, Damage]:
    """Return what is wrong with registered vector files, by number; pages that differ from all files are under 0."""
    expected = {i: counts for i, *counts in snapshot.connection.execute("SELECT id, vectors, full_vectors FROM pages")}
    names = dict(
        snapshot.connection.execute("SELECT v.id, d.name FROM versions v JOIN documents d ON d.id = v.document_id")
    )
    damages: dict[int, Damage] = {}
    stored: set[int] = set()
    miscounted: set[int] = set()
    unreadable: list[int] = []
    for number, entry in snapshot.files.items():
        path, segment = segment_path(snapshot.folder, number), None
        try:
            with storage_errors(snapshot.folder):
                segment = Segment(path, entry)
            problem = _segment_problem(segment, snapshot.version.index_id, expected, stored)
            counts = zip(segment.page_ids(), segment.kept.tolist(), segment.full.tolist(), strict=True)
            miscounted.update(i for i, *count in counts if expected.get(i, count) != count)
        except DamagedError as error:
            problem = error.problem
        if segment is None:
            unreadable.append(number)
        if problem is not None:
            broken = [] if segment is None else np.unique(segment.version[~segment.intact()]).tolist()
            affected = tuple(sorted(names[n] for n in broken if n in names))
            damages[number] = Damage(f"{VECTORS}/{path.name}", problem, affected)
    if miscounted:  # the files match their checksums, which rows of pages do not have
        problem = f"{len(miscounted)} rows of pages have other numbers of vectors than the vector files"
        damages[0] = Damage(DATABASE, problem, _document_names(miscounted, names))
    missing = [identity for identity in expected if identity not in stored]
    if missing:
        affected = _document_names(missing, names)
        for number in unreadable:
            damages[number] = Damage(damages[number].file, damages[number].problem, affected)
        if not unreadable:
            damages[0] = Damage(DATABASE, f"{len(missing)} pages are in no vector file", affected)
    return damages


def _document_names(pages: Iterable[int], names: Mapping[int, str]) -> tuple[str, ...]:
    """Return names of the documents of pages, from the names by version."""
    return tuple(sorted({names[i >> PAGE_BITS] for i in pages if i >> PAGE_BITS in names}))


def _segment_problem(segment: Segment, index_id: str, expected: dict[int, list[int]], stored: set[int]) -> str | None:
    """Return what is wrong with a vector file; the page ids of its rows are added to `stored`."""
    identities = segment.page_ids()
    twice = any(i in stored and i in expected for i in identities)
    stored.update(identities)
    segment.verify()
    if segment.header.get("index_id") != index_id:
        return "it belongs to another index"
    if len(segment) != segment.entry.rows or len(segment.codes) != segment.starts[-1]:
        return "its counts do not add up"
    if twice:
        return "it contains pages that are also stored in another file"
    return None


def derived_damages(folder: Path) -> list[Damage]:
    """Damaged posting lists: searches scan without them, and the next run of indexing builds them again."""
    damages = []
    for path in sorted((folder / VECTORS).glob("*.ivf")):
        try:
            with storage_errors(folder):
                ColumnFile(path).verify()
        except DamagedError as error:
            if path.exists():  # not removed by a writer in the meantime
                damages.append(Damage(f"{VECTORS}/{path.name}", error.problem))
    return damages
