"""Errors of the system and of SQLite as errors that a user can act on."""

import errno
import os
import resource
import sqlite3
from contextlib import suppress

import pytest

from anchorfold import AnchorFold, Index
from anchorfold.errors import DamagedError, DiskFullError, NotAnIndexError, StoreError
from anchorfold.storage.file_errors import explain_os, explain_sqlite, storage_errors
from tests.number_reader import NumberReader, write_pdf


@pytest.fixture
def index(tmp_path):
    index = Index.create(tmp_path / "my.index", NumberReader(), AnchorFold(ratio=0.5))
    index.add(write_pdf(tmp_path / "a.pdf", [1, 2]))
    return index


def sqlite_error(code, message, kind=sqlite3.OperationalError):
    error = kind(message)
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (OSError(errno.ENOSPC, "x"), DiskFullError, "disk is full"),
        (OSError(errno.EDQUOT, "x"), DiskFullError, "disk is full"),
        (OSError(errno.EMFILE, "x"), StoreError, "descriptors"),
        (OSError(errno.EIO, "x"), StoreError, "input/output error"),
        (PermissionError(errno.EACCES, "x"), StoreError, "permission denied"),
        (OSError(errno.EROFS, "x"), StoreError, "permission denied"),
        (FileNotFoundError(errno.ENOENT, "x", "/vectors/1.seg"), DamagedError, "1.seg is missing"),
        (OSError("without a number"), StoreError, "without a number"),
        (sqlite_error(sqlite3.SQLITE_FULL, "database or disk is full"), DiskFullError, "disk is full"),
        (sqlite_error(sqlite3.SQLITE_BUSY, "database is locked"), StoreError, "locked by another process"),
        (sqlite_error(sqlite3.SQLITE_READONLY, "attempt to write"), StoreError, "permission denied"),
        (sqlite_error(sqlite3.SQLITE_IOERR_READ, "disk I/O error"), StoreError, "(disk I/O error): try again"),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN, "unable to open"), StoreError, "(unable to open): try again"),
        (sqlite_error(sqlite3.SQLITE_ERROR, "no such module: fts5"), StoreError, "another build of Python"),
        (sqlite_error(sqlite3.SQLITE_CORRUPT, "malformed", sqlite3.DatabaseError), DamagedError, "malformed"),
        (sqlite_error(sqlite3.SQLITE_NOTADB, "not a database", sqlite3.DatabaseError), DamagedError, "not a database"),
    ],
)
def test_each_error_is_named_as_what_it_is(index, error, kind, words):
    explain = explain_os if isinstance(error, OSError) else explain_sqlite
    fault = explain(error, index.path)
    assert type(fault) is kind
    assert words in str(fault)
    assert ("damaged" in str(fault)) == (kind is DamagedError)
    assert str(index.path) in str(fault) or "Python" in str(fault)
    for advice in ("remove the folder", "delete"):
        assert advice not in str(fault)
    with pytest.raises(kind, match=r"is|cannot|has"), storage_errors(index.path):
        raise error


def test_values_that_a_flipped_bit_makes_are_damage(tmp_path):
    for error in (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"), OverflowError(), MemoryError()):
        with pytest.raises(DamagedError, match="contains a value that cannot be read"), storage_errors(tmp_path):
            raise error


def test_other_errors_pass_through(tmp_path):
    for error in (KeyboardInterrupt, ValueError, KeyError, RuntimeError, sqlite3.ProgrammingError):
        with pytest.raises(error), storage_errors(tmp_path):
            raise error


def test_an_index_without_descriptors_is_not_called_damaged(index, tmp_path):
    other = Index.open(index.path, NumberReader())
    for work in (other.info, lambda: other.search("page 1"), lambda: other.page("a.pdf", 1)):
        work()  # everything that it imports is imported now: modules need descriptors too
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    held = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
        for attempt in (other.info, lambda: other.page("a.pdf", 1), lambda: other.search("page 1"),
                        lambda: other.add(tmp_path), lambda: Index.open(index.path)):  # fmt: skip
            with pytest.raises(StoreError, match="descriptors"):
                attempt()
    finally:
        for handle in held:
            os.close(handle)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert other.info().pages == 2
    assert other.search("page 2", top_k=1)[0].page == 2


def test_an_index_that_was_moved_while_it_was_open_is_reported_and_not_created_again(index, tmp_path):
    index.search("page 1")
    index.path.rename(tmp_path / "elsewhere")
    for attempt in (index.info, lambda: index.page("a.pdf", 1), lambda: index.search("page 1"),
                    lambda: index.add(tmp_path), lambda: index.remove("a.pdf")):  # fmt: skip
        with pytest.raises(NotAnIndexError, match="moved or removed"):
            attempt()
    assert not index.path.exists()
    assert Index.open(tmp_path / "elsewhere", NumberReader()).info().pages == 2
