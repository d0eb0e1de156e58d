"""The table of pages in LanceDB: commits that reach the disk, documents replaced in one step."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import lancedb  # reads its environment when it first scans, not when it is imported
import pyarrow as pa

from anchorfold.errors import AnchorFoldError, NotAnIndexError
from anchorfold.store.schema import IndexSettings, PageRow, page_schema, to_table

T = TypeVar("T")

# By default a scan reads up to two gigabytes ahead: pages are large, and memory should stay flat.
os.environ.setdefault("LANCE_DEFAULT_IO_BUFFER_SIZE", str(64 << 20))

NAME = "pages"
# Small files are merged when there are this many, and more than one for so many pages: merging copies the whole
# table, so it must become rarer as the table grows.
MANY_FILES, SOME_FILES, PAGES_A_FILE = 50, 8, 64
RETRIES = 5


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


@contextmanager
def plain_errors(folder: Path) -> Iterator[None]:
    """LanceDB's errors as one sentence."""
    try:
        yield
    except (RuntimeError, OSError, pa.ArrowException) as error:
        text = str(error)
        if "No space left" in text or "os error 28" in text or "StorageFull" in text or "Disk quota" in text:
            raise AnchorFoldError(
                f"the disk is full: what was committed to {folder} is safe; free some space and run the command again."
            ) from error
        if "Permission denied" in text or "Read-only file system" in text:
            raise AnchorFoldError(f"{folder} cannot be written: permission denied.") from error
        raise NotAnIndexError(
            f"{folder} is damaged ({text.splitlines()[0][:160] if text else type(error).__name__}): "
            "restore it from a backup, or remove the folder and index again."
        ) from error


def quoted(text: str) -> str:
    """A string literal for a filter."""
    return "'" + text.replace("'", "''") + "'"


class PageTable:
    """An open table. Reads see the version that was current at `refresh`."""

    def __init__(self, folder: Path, table: Any) -> None:
        self.folder, self.table = folder, table
        self.settings = IndexSettings.from_schema(table.schema)
        self._synced: set[str] = set()

    @classmethod
    def create(cls, folder: Path, settings: IndexSettings) -> PageTable:
        """A new table in a folder that is empty or not there yet."""
        with plain_errors(folder):
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
        with plain_errors(folder):
            try:
                table = lancedb.connect(folder).open_table(NAME)
            except ValueError as error:
                raise NotAnIndexError(f"{folder} is not an index, or its making was cut short: {error}.") from error
            return cls(folder, table)

    @property
    def version(self) -> int:
        """The version that reads see."""
        return int(self.table.version)

    def refresh(self) -> int:
        """Move to the newest version."""
        with plain_errors(self.folder):
            self.table.checkout_latest()
            return self.version

    # Writing: the caller holds the lock.

    def append(self, rows: Sequence[PageRow]) -> None:
        """Add pages in one commit."""
        if rows:
            with plain_errors(self.folder):
                self.table.add(to_table(rows, self.settings))
            self._committed()

    def promote(self, source: str, digest: str) -> None:
        """Replace a document by its staged version: one commit makes the new pages live and the old ones not."""
        with plain_errors(self.folder):
            self.table.update(where=f"source = {quoted(source)}", values_sql={"live": f"digest = {quoted(digest)}"})
        self._committed()
        self.delete(f"source = {quoted(source)} AND NOT live")

    def move(self, sources: Mapping[str, str]) -> None:
        """Give documents another source: from old to new path. Those that changed folder together take one commit."""
        groups: dict[tuple[str, str], list[str]] = {}
        for old, new in sources.items():
            same = next((i for i, (a, b) in enumerate(zip(old[::-1], new[::-1], strict=False)) if a != b), 0)
            groups.setdefault((old[: len(old) - same], new[: len(new) - same]), []).append(old)
        for (before, after), members in groups.items():
            path = f"concat({quoted(after)}, substr(source, {len(before) + 1}))"
            for start in range(0, len(members), 500):
                some = ", ".join(map(quoted, members[start : start + 500]))
                with plain_errors(self.folder):
                    self.table.update(where=f"source IN ({some})", values_sql={"source": path})
                self._committed()

    def delete(self, where: str) -> None:
        """Delete rows by a filter."""
        with plain_errors(self.folder):
            self.table.delete(where)
        self._committed()

    def tidy(self) -> None:
        """Merge small files and drop older versions; whoever was reading one starts again (`consistently`)."""
        with plain_errors(self.folder), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            self.table.optimize(cleanup_older_than=timedelta(0))
        self.sync()

    def finish(self) -> None:
        """Tidy at the end of a run, if there is something to merge."""
        self._tidy_if(SOME_FILES)

    def _tidy_if(self, many: int) -> None:
        files = len(os.listdir(self.folder / f"{NAME}.lance" / "data"))
        if files >= many and files >= self.table.count_rows() // PAGES_A_FILE:
            self.tidy()

    def _committed(self) -> None:
        self.sync()
        self._tidy_if(MANY_FILES)

    def sync(self) -> None:
        """Bring every new file of the table to the disk; LanceDB itself leaves that to the system."""
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
        """Run a function that reads one version; again on a newer one if a writer tidied this one away meanwhile."""
        for _ in range(RETRIES):
            version = self.version
            try:
                return read()
            except NotAnIndexError:
                if self.refresh() == version:
                    raise
        return read()

    def documents(self) -> dict[str, DocumentState]:
        """Every document by its source."""
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
        with plain_errors(self.folder):
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

    def page(self, source: str, page: int, columns: Sequence[str]) -> pa.Table | None:
        """One live page, or None."""
        batches = [b for b in self.scan(columns, f"source = {quoted(source)} AND page = {int(page)}") if b.num_rows]
        return pa.Table.from_batches(batches) if batches else None


def _fsync(path: str) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:  # cleaned up since
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
