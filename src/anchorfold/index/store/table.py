"""The table of pages in LanceDB: commits that reach the disk, documents replaced in one step."""

from __future__ import annotations

import fcntl
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import lancedb  # reads its environment when it first scans, not when it is imported
import pyarrow as pa

from anchorfold.errors import DamagedError, NotAnIndexError
from anchorfold.index.store.faults import is_there, moved, storage_errors
from anchorfold.index.store.schema import IndexSettings, PageRow, page_schema, to_table

T = TypeVar("T")

# By default a scan reads up to two gigabytes ahead: pages are large, and memory should stay flat.
os.environ.setdefault("LANCE_DEFAULT_IO_BUFFER_SIZE", str(64 << 20))

NAME = "pages"
# Small files are merged when there are this many, and more than one for so many pages: merging copies the whole
# table, so it must become rarer as the table grows.
MANY_FILES, SOME_FILES, PAGES_A_FILE = 50, 8, 64
RETRIES = 50  # a writer that commits without a pause moves on a few times while one reads
FILTER_NAMES = 500


@dataclass
class DocumentState:
    """What the table knows of a document: its live version, and pages staged for a newer one."""

    document: str
    digest: str = ""
    size: int = -1
    modified: int = -1
    pages: int = 0
    have: set[int] = field(default_factory=set)
    staged: dict[str, set[int]] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """All pages of the live version are there."""
        return bool(self.digest) and len(self.have) == self.pages


def quoted(text: str) -> str:
    """A string literal for a filter."""
    return "'" + text.replace("'", "''") + "'"


def one_of(sources: Iterable[str]) -> Iterator[str]:
    """Filters that together name some documents, none of them too long."""
    ordered = sorted(sources)
    for start in range(0, len(ordered), FILTER_NAMES):
        yield f"source IN ({', '.join(map(quoted, ordered[start : start + FILTER_NAMES]))})"


class PageTable:
    """An open table. Reads see the version that was current at `refresh`."""

    def __init__(self, folder: Path, table: Any) -> None:
        self.folder, self.table = folder, table
        self.settings = IndexSettings.from_schema(table.schema)
        self._synced: set[str] = set()

    @classmethod
    def create(cls, folder: Path, settings: IndexSettings) -> PageTable:
        """A new table in a folder that is empty or not there yet."""
        with storage_errors(folder):
            table = lancedb.connect(folder).create_table(NAME, schema=page_schema(settings))
        found = cls(folder, table)
        found.sync()
        return found

    @classmethod
    def open(cls, folder: Path) -> PageTable:
        """The table of an index; NotAnIndexError if there is none."""
        if not folder.exists():
            raise NotAnIndexError(f"{folder} does not exist: make it with `anchorfold index FILES --to {folder}`.")
        if not (folder / f"{NAME}.lance").is_dir():
            raise NotAnIndexError(f"{folder} is not an index: it holds no table of pages.")
        with storage_errors(folder):
            try:
                table = lancedb.connect(folder).open_table(NAME)
            except ValueError as error:
                if "not found" not in str(error):
                    raise
                raise NotAnIndexError(f"{folder} is not an index, or its making was cut short: {error}.") from error
            return cls(folder, table)

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self.table.schema

    @property
    def version(self) -> int:
        """The version that reads see."""
        return int(self.table.version)

    def refresh(self) -> int:
        """Move to the newest version."""
        if not is_there(self.folder):
            raise moved(self.folder)
        with storage_errors(self.folder):
            self.table.checkout_latest()
            return self.version

    # Writing: the caller holds the lock.

    def append(self, rows: Sequence[PageRow]) -> None:
        """Add pages in one commit."""
        if rows:
            batch = to_table(rows, self.settings)
            with storage_errors(self.folder):
                self.table.add(batch)
            self._committed()

    def promote(self, source: str, digest: str) -> None:
        """Replace a document by its staged version: one commit makes the new pages live and the old ones not."""
        with storage_errors(self.folder):
            self.table.update(where=f"source = {quoted(source)}", values_sql={"live": f"digest = {quoted(digest)}"})
        self._committed()
        self.drop_staged([source])

    def touch(self, source: str, size: int, modified: int) -> None:
        """Store a document's size and time anew: the file was written again with the same content."""
        with storage_errors(self.folder):
            self.table.update(where=f"source = {quoted(source)} AND live", values={"size": size, "modified": modified})
        self._committed()

    def move(self, sources: Mapping[str, str]) -> None:
        """Give documents another source: from old to new path. Those that changed folder together take one commit."""
        groups: dict[tuple[str, str], list[str]] = {}
        for old, new in sources.items():
            same = next((i for i, (a, b) in enumerate(zip(old[::-1], new[::-1], strict=False)) if a != b), 0)
            groups.setdefault((old[: len(old) - same], new[: len(new) - same]), []).append(old)
        for (before, after), members in groups.items():
            path = f"concat({quoted(after)}, substr(source, {len(before) + 1}))"
            for some in one_of(members):
                with storage_errors(self.folder):
                    self.table.update(where=some, values_sql={"source": path})
                self._committed()

    def remove(self, sources: Iterable[str]) -> None:
        """Delete all pages of some documents."""
        for some in one_of(sources):
            self._delete(some)

    def drop_staged(self, sources: Iterable[str]) -> None:
        """Delete the pages of some documents that never became live."""
        for some in one_of(sources):
            self._delete(f"{some} AND NOT live")

    def _delete(self, where: str) -> None:
        with storage_errors(self.folder):
            self.table.delete(where)
        self._committed()

    def tidy(self) -> None:
        """Merge small files and drop older versions; whoever was reading one starts again (`consistently`)."""
        with storage_errors(self.folder), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            # The lock is ours: files that no version names are of writers that died.
            self.table.optimize(cleanup_older_than=timedelta(0), delete_unverified=True)
            for unfinished in (self.folder / f"{NAME}.lance").glob("*/.tmp*"):
                unfinished.unlink(missing_ok=True)
        self.sync()

    def finish(self) -> None:
        """Tidy at the end of a run, if there is something to merge."""
        self._tidy_if(SOME_FILES)

    def _tidy_if(self, many: int) -> None:
        data = self.folder / f"{NAME}.lance" / "data"
        files = len(os.listdir(data)) if data.is_dir() else 0  # a table without rows has no data folder
        if files >= many and files >= self.table.count_rows() // PAGES_A_FILE:
            self.tidy()

    def _committed(self) -> None:
        self.sync()
        self._tidy_if(MANY_FILES)

    def sync(self) -> None:
        """Bring every new file of the table to the disk; LanceDB itself leaves that to the system."""
        with storage_errors(self.folder):
            self._sync()

    def _sync(self) -> None:
        root = self.folder / f"{NAME}.lance"
        found: set[str] = set()
        folders: set[str] = set()
        stack = [os.fspath(root)]
        while stack:
            at = stack.pop()
            try:
                entries = list(os.scandir(at))
            except FileNotFoundError:
                continue
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                    continue
                found.add(entry.path)
                if entry.path not in self._synced:
                    folders.add(at)
                    _fsync(entry.path)
        for at in sorted(folders | ({os.fspath(self.folder)} if folders else set()), reverse=True):
            _fsync(at)
        self._synced = found

    # Reading.

    def consistently(self, read: Callable[[], T]) -> T:
        """Run a function that reads once; again on a newer version if a writer tidied this one away meanwhile."""
        for _ in range(RETRIES):
            version = self.version
            try:
                return read()
            except DamagedError:
                if self.refresh() == version:
                    raise
        return read()

    def snapshot(self, read: Callable[[PageTable], T]) -> T:
        """Run a function that reads more than once, on a table of its own: no other thread moves its version."""
        for _ in range(RETRIES):
            table = PageTable.open(self.folder)
            try:
                return read(table)
            except DamagedError:
                if PageTable.open(self.folder).version == table.version:
                    raise
        return read(PageTable.open(self.folder))

    def documents(self) -> dict[str, DocumentState]:
        """Every document by its source."""
        return self.consistently(self._documents)

    def _documents(self) -> dict[str, DocumentState]:
        found: dict[str, DocumentState] = {}
        names = ["source", "document", "page", "pages", "digest", "size", "modified", "live"]
        for batch in self.scan(names, live=False):
            for source, document, page, pages, digest, size, modified, live in zip(
                *(batch[n].to_pylist() for n in names), strict=True
            ):
                state = found.setdefault(source, DocumentState(document))
                if live:
                    state.document, state.digest, state.pages = document, digest, pages
                    state.size, state.modified = size, modified
                    state.have.add(page)
                else:
                    state.staged.setdefault(digest, set()).add(page)
        return found

    def scan(self, columns: Sequence[str], where: str | None = None, live: bool = True) -> Iterator[pa.RecordBatch]:
        """Batches of some columns, of live pages unless said otherwise, in no promised order."""
        filters = [f"({f})" for f in ("live" if live else None, where) if f]
        with storage_errors(self.folder):
            query = self.table.search().select(list(columns))
            if filters:
                query = query.where(" AND ".join(filters))
            reader = query.to_batches(batch_size=256)
            while True:
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
                yield batch

    def encoded_pages(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Batches of some columns of all live pages that have vectors, in no promised order."""
        return self.scan(columns, "kept > 0")

    def page(self, source: str, page: int, columns: Sequence[str] | None = None) -> pa.Table | None:
        """Some columns, or all, of one live page; None if there is no such page."""
        columns = self.table.schema.names if columns is None else columns
        where = f"source = {quoted(source)} AND page = {int(page)}"
        batches = self.consistently(lambda: [b for b in self.scan(columns, where) if b.num_rows])
        return pa.Table.from_batches(batches) if batches else None


def _fsync(path: str) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # cleaned up since
        return
    try:
        _to_disk(handle)
    finally:
        os.close(handle)


def _to_disk(handle: int) -> None:
    if sys.platform == "darwin":  # fsync there stops at the drive's own memory
        with suppress(OSError):  # a file system that cannot
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
    os.fsync(handle)
