"""Verification of an index: every checksum, count and reference."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anchorfold.errors import DamagedError, StoreError
from anchorfold.index.store.column_file import ColumnFile
from anchorfold.index.store.database import Database, has_schema, transaction
from anchorfold.index.store.faults import not_there, sqlite_errors, storage_errors
from anchorfold.index.store.schema import DATABASE, PAGE_BITS, VECTORS
from anchorfold.index.store.segment import OpenSegments, Segment, segment_path
from anchorfold.index.store.snapshot import Snapshot


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
            damages = [Damage(DATABASE, problem) for problem in database_problems(snapshot)]
            files = {} if damages else file_damages(snapshot)
            derived = [] if damages else derived_damages(snapshot)
        if files:  # a writer may have merged some of them in the meantime
            with database.reading() as connection:
                registered = Snapshot(folder, connection, OpenSegments(folder)).files
            files = {number: damage for number, damage in files.items() if not number or number in registered}
        damages += [*files.values(), *derived]
    except DamagedError as error:
        damages = [Damage(DATABASE, error.problem)]
    if not damages and (problem := full_text_problem(database)):
        damages = [Damage(DATABASE, problem)]
    return damages


def database_problems(snapshot: Snapshot) -> Iterator[str]:
    """What is wrong in the database, except in its full-text index."""
    connection = snapshot.connection
    for step in (
        lambda: _header(snapshot.folder),
        lambda: _structure(connection),
        lambda: _covered(snapshot),
        lambda: _versions(snapshot),
        lambda: _payloads(snapshot),
        lambda: _orphans(connection),
    ):
        problem = _problem(snapshot.folder, step)
        if problem:
            yield problem


def _problem(folder: Path, step: Callable[[], str | None]) -> str | None:
    try:
        with sqlite_errors(folder):
            return step()
    except DamagedError as error:
        return error.problem


def _header(folder: Path) -> str | None:
    """The format versions for reading and writing: SQLite cannot write to a file with an unknown one."""
    with storage_errors(folder), open(folder / DATABASE, "rb") as file:
        write, read = file.read(20)[18:]
    return None if write == read and write in (1, 2) else f"{DATABASE}: its header has format versions {write}, {read}"


def _structure(connection: sqlite3.Connection) -> str | None:
    for (found,) in connection.execute("PRAGMA integrity_check(1)"):
        if found != "ok":
            return f"{DATABASE}: {found}"
    return None if has_schema(connection) else f"{DATABASE}: its schema was changed"


def _covered(snapshot: Snapshot) -> None:
    _ = snapshot.live_ids(), snapshot.files, snapshot.given_columns  # raise if they do not match their checksums


def _versions(snapshot: Snapshot) -> None:
    for _ in snapshot.versions():
        pass  # raises if a row does not match its checksum


def _payloads(snapshot: Snapshot) -> None:
    for table, read in (("page_payloads", snapshot.payload), ("texts", snapshot.text)):
        for (identity,) in snapshot.connection.execute(f"SELECT page_id FROM {table}").fetchall():
            read(identity)


def _orphans(connection: sqlite3.Connection) -> str | None:
    for table, column in (("pages", "id"), ("page_payloads", "page_id"), ("texts", "page_id")):
        parent, key = ("versions", f"{column} >> {PAGE_BITS}") if table == "pages" else ("pages", column)
        query = f"SELECT count(*) FROM {table} WHERE {key} NOT IN (SELECT id FROM {parent})"
        (orphans,) = connection.execute(query).fetchone()
        if orphans:
            return f"{DATABASE}: {orphans} rows of {table} belong to nothing"
    (orphans,) = connection.execute(
        "SELECT count(*) FROM documents WHERE id NOT IN (SELECT document_id FROM versions)"
    ).fetchone()
    return f"{DATABASE}: {orphans} documents have no version" if orphans else None


def full_text_problem(database: Database) -> str | None:
    """Whether the full-text index differs from the texts. The check of FTS5 is a write that is rolled back."""
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
    except StoreError:
        return None  # read-only, or another process is writing for a long time
    finally:
        connection.close()
    return None


def file_damages(snapshot: Snapshot) -> dict[int, Damage]:
    """What is wrong with registered vector files, by number; pages that are in no file are under 0."""
    expected = _registered_pages(snapshot)
    names = dict(
        snapshot.connection.execute("SELECT v.id, d.name FROM versions v JOIN documents d ON d.id = v.document_id")
    )
    damages: dict[int, Damage] = {}
    stored: set[int] = set()
    unreadable: list[int] = []
    for number, entry in snapshot.files.items():
        path = segment_path(snapshot.folder, number)
        file, segment = f"{VECTORS}/{path.name}", None
        try:
            with storage_errors(snapshot.folder):
                segment = Segment(path, entry)
            problem = next(segment_problems(segment, snapshot.version.index_id, expected, stored), None)
        except DamagedError as error:
            problem = error.problem
        if segment is None:
            unreadable.append(number)
        if problem is not None:
            broken = [] if segment is None else np.unique(segment.version[~segment.intact()]).tolist()
            damages[number] = Damage(file, problem, tuple(sorted(names[n] for n in broken if n in names)))
    missing = [identity for identity in expected if identity not in stored]
    if missing:
        affected = tuple(sorted({names[i >> PAGE_BITS] for i in missing if i >> PAGE_BITS in names}))
        for number in unreadable:
            damages[number] = Damage(damages[number].file, damages[number].problem, affected)
        if not unreadable:
            damages[0] = Damage(DATABASE, f"{len(missing)} pages are in no vector file", affected)
    return damages


def _registered_pages(snapshot: Snapshot) -> dict[int, tuple[int, int]]:
    rows = snapshot.connection.execute("SELECT id, vectors, full_vectors FROM pages")
    return {identity: (vectors, full) for identity, vectors, full in rows}


def segment_problems(
    segment: Segment, index_id: str, expected: dict[int, tuple[int, int]], stored: set[int]
) -> Iterator[str]:
    """What is wrong with a vector file; the page ids of its rows are added to `stored`."""
    known = {identity >> PAGE_BITS for identity in expected}
    identities = segment.page_ids()
    counts = list(zip(segment.kept.tolist(), segment.full.tolist(), strict=True))
    twice = [i for i in identities if i in stored]
    stored.update(identities)
    for name in segment.names():
        segment.column(name)  # raises if it does not match its checksum
    if segment.header.get("index_id") != index_id:
        yield f"{segment.path.name} belongs to another index"
    if len(segment) != segment.entry.rows or len(segment.codes) != segment.starts[-1]:
        yield f"{segment.path.name}: its counts do not add up"
    if any(i >> PAGE_BITS in known for i in twice):
        yield f"{segment.path.name} contains pages that are also stored in another file"
    if any(i in expected and expected[i] != c for i, c in zip(identities, counts, strict=True)):
        yield f"{segment.path.name}: the database has other numbers of vectors for its pages"


def derived_damages(snapshot: Snapshot) -> list[Damage]:
    """Damaged posting lists: searches scan without them, and the next run of indexing builds them again."""
    damages = []
    for path in sorted((snapshot.folder / VECTORS).glob("*.ivf")):
        try:
            with storage_errors(snapshot.folder):
                file = ColumnFile(path)
                for name in file.names():
                    file.column(name)
        except DamagedError as error:
            if path.exists():  # not removed by a writer in the meantime
                damages.append(Damage(f"{VECTORS}/{path.name}", error.problem))
    return damages
