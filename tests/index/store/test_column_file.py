"""Files of columns: whatever is read was verified, and no more than that is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anchorfold.errors import DamagedError
from anchorfold.index.store import column_file
from anchorfold.index.store.column_file import BLOCK, ColumnFile, FileEntry, array_column, blob_columns, write_columns

ROWS = 5 * BLOCK // 24 + 7  # rows of 24 bytes: some span two blocks, and the last block is short
HEADER = {"index_id": "x"}


@pytest.fixture
def numbers() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (ROWS, 24), np.uint8)


def write_file(path: Path, numbers: np.ndarray, flipped: int | None = None) -> ColumnFile:
    columns = [array_column("other", np.arange(9)), array_column("codes", numbers, long=True)]
    entry = write_columns(path, ROWS, columns, HEADER)
    if flipped is not None:
        data = bytearray(path.read_bytes())
        data[flipped] ^= 1
        path.write_bytes(data)
    return ColumnFile(path, entry)


def read_all(path: Path, numbers: np.ndarray, flipped: int) -> None:
    file = write_file(path, numbers, flipped)
    for name in file.names():
        file.column(name)


@pytest.mark.parametrize("small", [0, 1 << 30])
def test_rows_of_a_long_column(tmp_path, numbers, monkeypatch, small):
    monkeypatch.setattr(column_file, "SMALL", small)  # mapped, or read
    file = write_file(tmp_path / "a", numbers)
    for rows in (slice(3, 9), slice(0, 0), slice(ROWS - 2, ROWS), slice(2720, 2740), np.array([5, 1, ROWS - 1, 2730])):
        assert np.array_equal(file.rows("codes", rows), numbers[rows])
    assert np.array_equal(file.column("codes"), numbers)
    assert np.array_equal(file.rows("codes", np.array([7])), numbers[[7]])
    assert np.array_equal(file.rows("other", slice(2, 4)), [2, 3])
    assert file.column("codes").flags.writeable  # which torch requires
    assert (file.names(), file.header) == (["other", "codes"], HEADER)


def test_a_flipped_bit_is_reported_to_readers_of_its_block_alone(tmp_path, numbers):
    start = 128  # of the codes: the other column takes 72 bytes and its padding
    file = write_file(tmp_path / "a", numbers, start + BLOCK + 10)
    before, across = BLOCK // 24 - 1, BLOCK // 24  # the last bytes of the row `across` are in the damaged block
    assert np.array_equal(file.rows("codes", slice(0, before + 1)), numbers[: before + 1])
    last = np.array([ROWS - 1])
    assert np.array_equal(file.rows("codes", last), numbers[last])
    for rows in (slice(across, across + 1), np.array([across]), np.array([0, across + 1])):
        with pytest.raises(DamagedError, match="a: the column codes does not match its checksum"):
            file.rows("codes", rows)
    with pytest.raises(DamagedError, match="the column codes does not match its checksum"):
        file.column("codes")
    starts = np.arange(ROWS) * 24
    damaged = np.flatnonzero(~file.intact_bytes("codes", starts, starts + 24))
    assert (damaged[0], damaged[-1]) == (across, 2 * BLOCK // 24)


@pytest.mark.parametrize("where", ["other", "padding", "checksums", "footer", "length", "magic"])
def test_every_byte_is_covered_by_a_checksum(tmp_path, numbers, where):
    end = 128 + numbers.nbytes
    at = {"other": 8, "padding": 100, "checksums": end + -end % 64 + 5, "footer": -40, "length": -16, "magic": -1}
    with pytest.raises(DamagedError):
        read_all(tmp_path / "a", numbers, at[where])


@pytest.mark.parametrize("length", [0, 7, 100, -1])
def test_a_truncated_file_is_reported(tmp_path, numbers, length):
    file = write_file(tmp_path / "a", numbers)
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:length])
    for entry in (None, file.entry):
        with pytest.raises(DamagedError, match=r"truncated|footer"):
            ColumnFile(tmp_path / "a", entry)


def test_another_file_under_the_same_name_is_reported(tmp_path, numbers):
    entry = write_file(tmp_path / "a", numbers).entry
    write_file(tmp_path / "a", numbers[::-1])
    with pytest.raises(DamagedError, match="it is not the file that the index registered"):
        ColumnFile(tmp_path / "a", entry)


def test_a_file_can_be_read_without_its_entry(tmp_path, numbers):
    entry = write_file(tmp_path / "a", numbers).entry
    assert ColumnFile(tmp_path / "a").entry == entry == FileEntry(ROWS, (tmp_path / "a").stat().st_size, entry.checksum)


def test_columns_in_pieces_and_without_rows(tmp_path):
    pieces = column_file.FileColumn(
        "long", "<u4", (40_000,), (np.arange(n, n + 10_000, dtype="<u4") for n in range(0, 40_000, 10_000)), long=True
    )
    empty = array_column("empty", np.zeros((0, 4), np.float16), long=True)
    write_columns(tmp_path / "a", 3, [pieces, empty, *blob_columns("blob", [b"one", b"", b"three"])], {})
    file = ColumnFile(tmp_path / "a")
    assert np.array_equal(file.column("long"), np.arange(40_000))
    assert file.rows("empty", slice(0, 0)).shape == (0, 4)
    assert file.column("blob.length").tolist() == [3, 0, 5]
    assert file.column("blob").tobytes() == b"onethree"


def test_a_file_that_cannot_be_finished_is_removed(tmp_path):
    def broken():
        yield np.zeros(9, np.uint8)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_columns(tmp_path / "a", 1, [column_file.FileColumn("x", "|u1", (18,), broken())], {})
    assert list(tmp_path.iterdir()) == []
