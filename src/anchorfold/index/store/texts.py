"""The text of pages, and a full-text index of it: one SQLite file beside the segments.

It holds the only copy of each page's text, a row for every page of a document that the log knows by number, also for
pages that say nothing. A batch is written in one transaction before the commit that adds its pages: rows whose number
the log does not know count for nothing, and the next batch or `tidy` removes them. The full-text index has no
copy of its own (FTS5, external content), so that its integrity check compares it with the rows. Nobody keeps the file
open: every question opens it, which takes a moment, and reads what is there then.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anchorfold.errors import DamagedError, DiskFullError, StoreError
from anchorfold.index.store.durable import sync_folder
from anchorfold.index.store.faults import damaged
from anchorfold.index.words import joined, spaced

FILE = "text.sqlite"
FILES = (FILE, f"{FILE}-journal", f"{FILE}.part", f"{FILE}.part-journal")  # all that may lie in an index
PAGE_BITS = 24  # of a row's number; the bits above are the document's
BUSY_SECONDS = 30.0  # to wait for a transaction of another process
SNIPPET_WORDS = 24
FREE_SHARE = 0.1  # of the file, that is not worth giving back
OPENING, CLOSING, GAP = "\x02", "\x03", " … "  # no page's text has the first two: they are cleaned away

SCHEMA = """
PRAGMA page_size = 8192;
PRAGMA auto_vacuum = incremental;
CREATE TABLE pages (id INTEGER PRIMARY KEY, text TEXT NOT NULL, ocr INTEGER NOT NULL, checksum INTEGER NOT NULL);
CREATE VIRTUAL TABLE words USING fts5
  (text, content='pages', content_rowid='id', tokenize='porter unicode61 remove_diacritics 2');
CREATE TRIGGER added AFTER INSERT ON pages BEGIN INSERT INTO words (rowid, text) VALUES (new.id, new.text); END;
CREATE TRIGGER dropped AFTER DELETE ON pages
  BEGIN INSERT INTO words (words, rowid, text) VALUES ('delete', old.id, old.text); END;
"""
DOCUMENTS = f"""
WITH RECURSIVE numbers (number) AS (
  SELECT min(id) >> {PAGE_BITS} FROM pages
  UNION ALL SELECT (SELECT min(id) >> {PAGE_BITS} FROM pages WHERE id >= (number + 1) << {PAGE_BITS})
  FROM numbers WHERE number IS NOT NULL)
SELECT number FROM numbers WHERE number IS NOT NULL
"""


@dataclass(frozen=True)
class PageText:
    """What a page says: from its text layer, or read from its picture (`ocr`); empty if that gave nothing."""

    text: str
    ocr: bool = False


@dataclass(frozen=True)
class Snippet:
    """A piece of a page's text; `matches` are the places (first, last exclusive) of words that a query asked for."""

    text: str
    matches: tuple[tuple[int, int], ...]


def row_number(document: int, page: int) -> int:
    """Where the text of a page stands; it counts from 1."""
    return document << PAGE_BITS | page


def row_numbers(document: np.ndarray, page: np.ndarray) -> np.ndarray:
    """The same of many pages."""
    numbers: np.ndarray = document.astype(np.int64) << PAGE_BITS | page.astype(np.int64)
    return numbers


class PageTexts:
    """The texts of the index in a folder. Writing: the caller holds the writer's lock."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / FILE

    def __bool__(self) -> bool:
        return self.path.exists()

    @property
    def bytes(self) -> int:
        """On disk; 0 if there are none."""
        with suppress(FileNotFoundError):
            return os.stat(self.path).st_size
        return 0

    # Writing.

    def create(self, complete: bool = True) -> None:
        """An empty file, unless there is one; not `complete` if pages are stored whose text is not known."""
        if not self:
            with _errors(self.folder), closing(_connect(self.path, "rwc")) as file:
                _fill(file, (), complete)
            sync_folder(self.folder)

    def put(self, texts: Mapping[int, PageText], next_document: int | None = None) -> None:
        """Store texts by their row numbers, in the place of others, in one transaction.

        `next_document` is the first number that the log has not given out: rows from there on were left by a writer
        that died.
        """
        self.create(complete=False)
        with self._transaction() as file:
            if next_document is not None:
                file.execute("DELETE FROM pages WHERE id >= ?", (row_number(next_document, 0),))
            file.executemany("DELETE FROM pages WHERE id = ?", ((number,) for number in texts))
            file.executemany("INSERT INTO pages VALUES (?, ?, ?, ?)", (_row(n, t) for n, t in texts.items()))

    def tidy(self, known: Collection[int]) -> None:
        """Remove the texts of documents that are not known by number, and give room that is free back."""
        if not self:
            return
        with self._reading() as file:
            stored = [number for (number,) in file.execute(DOCUMENTS)]
        if unknown := [number for number in stored if number not in known]:
            with self._transaction() as file:
                ranges = ((row_number(number, 0), row_number(number + 1, 0)) for number in unknown)
                file.executemany("DELETE FROM pages WHERE id >= ? AND id < ?", ranges)
        with self._reading() as file:
            ((free,),), ((pages,),) = (file.execute(f"PRAGMA {n}_count").fetchall() for n in ("freelist", "page"))
            if free > pages * FREE_SHARE:
                file.executescript("PRAGMA incremental_vacuum")  # `execute` would stop after a page

    def set_complete(self, complete: bool) -> None:
        """Note whether every stored page has its text here."""
        with self._transaction() as file:
            file.execute(f"PRAGMA user_version = {int(complete)}")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _errors(self.folder), closing(_connect(self.path)) as file:
            file.execute("BEGIN IMMEDIATE")
            yield file
            file.execute("COMMIT")  # closing without it takes everything back

    # Reading.

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with _errors(self.folder), closing(_connect(self.path)) as file:
            yield file

    @property
    def complete(self) -> bool:
        """Whether every stored page has its text here, or is believed to."""
        if not self:
            return False
        with self._reading() as file:
            ((version,),) = file.execute("PRAGMA user_version")
        return bool(version)

    def numbers(self, ocr: bool = False) -> np.ndarray:
        """`(rows,)` the row numbers of all texts; with `ocr`, without those that are empty and were not read so."""
        if not self:
            return np.zeros(0, np.int64)
        some = " WHERE text != '' OR ocr" if ocr else ""
        with self._reading() as file:
            rows = file.execute(f"SELECT id FROM pages{some} ORDER BY id")
            return np.fromiter((number for (number,) in rows), np.int64)

    def text(self, number: int) -> PageText | None:
        """The text of a page by its row number; None if it is not here."""
        if not self:
            return None
        with self._reading() as file:
            row = file.execute("SELECT id, text, ocr, checksum FROM pages WHERE id = ?", (number,)).fetchone()
        return None if row is None else self._verified(*row)

    def _verified(self, number: int, text: object, ocr: object, checksum: object) -> PageText:
        if not isinstance(text, bytes) or _checksum(number, text, ocr) != checksum:
            raise damaged(self.folder, f"a text in {FILE} does not match its checksum")
        return PageText(joined(text.decode()), bool(ocr))

    def scores(self, expression: str) -> tuple[np.ndarray, np.ndarray]:
        """`(matches,)` row numbers, and BM25 scores above 0, of all pages that match an expression of FTS5."""
        with self._reading() as file:
            rows = file.execute("SELECT rowid, -bm25(words) FROM words WHERE words MATCH ?", (expression,)).fetchall()
        found = np.array(rows, np.float64).reshape(-1, 2) if rows else np.zeros((0, 2))
        found = found[np.isfinite(found).all(1)]
        return found[:, 0].astype(np.int64), found[:, 1]

    def that_say_something(self, numbers: Sequence[int]) -> list[int]:
        """Those of some rows that hold any text."""
        query = "SELECT id FROM pages WHERE id = ? AND text != ''"
        with self._reading() as file:
            return [number for number in numbers if file.execute(query, (number,)).fetchone() is not None]

    def snippets(self, expression: str, numbers: Sequence[int], words: int = SNIPPET_WORDS) -> dict[int, Snippet]:
        """Pieces of pages with the words that match, by row number; pages that do not match have none."""
        query = (
            "SELECT pages.id, pages.text, ocr, checksum, snippet(words, 0, ?, ?, ?, ?) FROM words "
            "JOIN pages ON pages.id = words.rowid WHERE words MATCH ? AND words.rowid = ?"
        )
        snippets: dict[int, Snippet] = {}
        with self._reading() as file:
            for number in numbers:
                row = file.execute(query, (OPENING, CLOSING, GAP, words, expression, number)).fetchone()
                if row is not None:
                    self._verified(*row[:4])
                    snippets[number] = as_snippet(joined(row[4].decode()))
        return snippets

    def matched_words(self, expression: str, number: int) -> list[str]:
        """The words of a page that an expression matches, as they stand there, once each."""
        query = "SELECT highlight(words, 0, ?, ?) FROM words WHERE words MATCH ? AND rowid = ?"
        with self._reading() as file:
            row = file.execute(query, (OPENING, CLOSING, expression, number)).fetchone()
        if row is None or not isinstance(row[0], bytes):
            return []
        shown = as_snippet(joined(row[0].decode(errors="replace")), one_line=False)
        return list(dict.fromkeys(shown.text[first:last] for first, last in shown.matches))

    # Checking.

    def problem(self) -> str | None:
        """What is not as it was written, if anything: rows, structure, or the index of their words. Changes nothing."""
        try:
            with self._reading() as file, closing(sqlite3.connect("", isolation_level=None)) as copy:
                file.backup(copy)  # the check of the words asks for the right to write
                copy.text_factory = bytes
                if _schema(copy) != _schema_of_new():
                    return "its tables are not those that were made"
                for row in copy.execute("SELECT id, text, ocr, checksum FROM pages"):
                    self._verified(*row)
                if copy.execute("PRAGMA integrity_check(1)").fetchone() != (b"ok",):
                    return "its structure is damaged"
                copy.execute("INSERT INTO words (words, rank) VALUES ('integrity-check', 1)")
        except DamagedError as error:
            return str(error).partition("(")[2].rpartition("):")[0]
        return None

    def rebuild(self, known: Collection[int]) -> None:
        """A new file of the rows that are as they were written, of documents that are known by number.

        What is missing is read again by the next run of indexing.
        """
        part, rows = self.folder / f"{FILE}.part", self._readable(known)
        for path in (self.folder / name for name in FILES if name != FILE):
            path.unlink(missing_ok=True)  # a journal of the old file must not be played into the new one
        with _errors(self.folder):
            with closing(_connect(part, "rwc")) as file:
                _fill(file, rows, complete=False)
            os.replace(part, self.path)
        sync_folder(self.folder)

    def _readable(self, known: Collection[int]) -> list[tuple[int, str, int, int]]:
        """Rows whose checksum is right: from the front, and from the back, as far as each goes."""
        rows: dict[int, tuple[int, str, int, int]] = {}
        for order in ("ASC", "DESC"):
            with suppress(StoreError, UnicodeDecodeError), self._reading() as file:
                for row in file.execute(f"SELECT id, text, ocr, checksum FROM pages ORDER BY id {order}"):
                    with suppress(DamagedError):
                        if row[0] >> PAGE_BITS in known:
                            rows[row[0]] = _row(row[0], self._verified(*row))
        return [rows[number] for number in sorted(rows)]


def as_snippet(marked: str, one_line: bool = True) -> Snippet:
    """A text whose matches stand between marks, without them."""
    if one_line:
        marked = " ".join(marked.split())
    text, matches, first = "", [], 0
    for character in marked:
        if character == OPENING:
            first = len(text)
        elif character == CLOSING:
            matches.append((first, len(text)))
        else:
            text += character
    return Snippet(text, tuple(matches))


def _row(number: int, page: PageText) -> tuple[int, str, int, int]:
    text = spaced(page.text)
    return number, text, int(page.ocr), _checksum(number, text.encode(), int(page.ocr))


def _checksum(number: int, text: bytes, ocr: object) -> int:
    return zlib.crc32(text, zlib.crc32(f"{number} {ocr}".encode()))


def _fill(file: sqlite3.Connection, rows: Iterable[tuple[int, str, int, int]], complete: bool) -> None:
    file.executescript(SCHEMA)
    file.execute("BEGIN IMMEDIATE")
    file.executemany("INSERT INTO pages VALUES (?, ?, ?, ?)", rows)
    file.execute(f"PRAGMA user_version = {int(complete)}")
    file.execute("COMMIT")


def _schema(file: sqlite3.Connection) -> list[tuple[object, ...]]:
    """The tables and triggers of a file that are ours; FTS5 has further ones of its own."""
    ours = "('pages', 'words', 'added', 'dropped')"
    return file.execute(f"SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name IN {ours} ORDER BY name").fetchall()  # fmt: skip  # noqa: E501


def _schema_of_new() -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as file:
        file.text_factory = bytes
        file.executescript(SCHEMA)
        return _schema(file)


def _connect(path: Path, mode: str = "rw") -> sqlite3.Connection:
    """Read-write even for readers: after a crash, whoever comes first takes the half transaction back.

    SQLite opens it for reading alone where that is all that the system allows.
    """
    address = f"{path.absolute().as_uri()}?mode={mode}"
    file = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    try:
        file.text_factory = bytes  # a flipped bit may leave what is no UTF-8
        for setting in ("synchronous = full", "fullfsync = on", "cell_size_check = on"):
            file.execute(f"PRAGMA {setting}")
    except BaseException:
        file.close()
        raise
    return file


@contextmanager
def _errors(folder: Path) -> Iterator[None]:
    """What SQLite reports as one sentence each."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explained(error, folder) from error
    except (UnicodeDecodeError, OverflowError, TypeError) as error:  # what a flipped bit makes of a value
        raise damaged(folder, f"{FILE} holds what is no text") from error


def _explained(error: sqlite3.Error, folder: Path) -> StoreError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return DiskFullError(
            f"the disk is full: what was committed to {folder} is safe; free some space and run the command again."
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(f"{folder / FILE} is being written for a long time: try again in a moment.")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH, sqlite3.SQLITE_CANTOPEN):
        return StoreError(f"{folder / FILE} cannot be read or written: permission denied, or it is gone.")
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM):
        return StoreError(f"{folder / FILE} cannot be read or written ({error}): try again.")
    reason = next(iter(str(error).splitlines()), "")[:80]
    if "no such module" in reason:
        return StoreError("the SQLite of this Python cannot search text (FTS5): use another build of Python, or --no-text.")  # fmt: skip  # noqa: E501
    return damaged(folder, f"{FILE} is not as it was written: {reason}")
