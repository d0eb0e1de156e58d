"""Files of columns: whatever is read was verified."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anchorfold.errors import DamagedError
from anchorfold.storage import column_file
from anchorfold.storage.column_file import ColumnFile, FileColumn, FileEntry, array_column, write_columns

HEADER = {"index_id": "x"}
NUMBERS = np.random.default_rng(0).integers(0, 256, (1007, 24), np.uint8)


def write_file(path: Path, numbers: np.ndarray = NUMBERS, flipped: int | None = None) -> ColumnFile:
    columns = [array_column("other", np.arange(9)), array_column("codes", numbers)]
    entry = write_columns(path, len(numbers), columns, HEADER)
    if flipped is not None:
        data = bytearray(path.read_bytes())
        data[flipped] ^= 1
        path.write_bytes(data)
    return ColumnFile(path, entry)


@pytest.mark.parametrize("small", [0, 1 << 30])
def test_columns_are_read_as_they_were_written(tmp_path, monkeypatch, small):
    monkeypatch.setattr(column_file, "SMALL", small)  # mapped, or read
    file = write_file(tmp_path / "a")
    assert np.array_equal(file.column("codes"), NUMBERS)
    assert np.array_equal(file.column("other"), np.arange(9))
    assert file.column("codes").flags.writeable  # which torch requires
    assert (file.names(), file.header) == (["other", "codes"], HEADER)


def test_a_flipped_bit_is_reported_to_readers_of_its_column_alone(tmp_path):
    file = write_file(tmp_path / "a", flipped=128 + 1000)  # the other column takes 72 bytes and its padding
    assert file.column("other").tolist() == list(range(9))
    with pytest.raises(DamagedError, match="a: the column codes does not match its checksum"):
        file.column("codes")
    assert file.column("codes", verify=False).shape == NUMBERS.shape


@pytest.mark.parametrize("byte", {"other": 8, "padding": 100, "footer": -40, "length": -16, "magic": -1}.values())
def test_every_byte_is_covered_by_a_checksum(tmp_path, byte):
    file = write_file(tmp_path / "a", flipped=byte)
    with pytest.raises(DamagedError):
        file.verify()


def test_a_copy_is_used_where_a_column_or_a_footer_is_damaged(tmp_path):
    path = tmp_path / "a"
    entry = write_columns(path, 1007, [array_column("codes", NUMBERS, twice=True)], HEADER)
    intact = path.read_bytes()
    for byte in (50, len(intact) - 1, len(intact) - 14, len(intact) - 100, len(intact) - 300):
        data = bytearray(intact)
        data[byte] ^= 1
        path.write_bytes(data)
        assert np.array_equal(ColumnFile(path, entry).column("codes"), NUMBERS)
        with pytest.raises(DamagedError):
            ColumnFile(path, entry).verify()


@pytest.mark.parametrize("length", [0, 7, 100, -1])
def test_a_truncated_file_is_reported(tmp_path, length):
    file = write_file(tmp_path / "a")
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:length])
    for entry in (None, file.entry):
        with pytest.raises(DamagedError, match=r"truncated|footer|registered"):
            ColumnFile(tmp_path / "a", entry).verify()


def test_another_file_under_the_same_name_is_reported(tmp_path):
    entry = write_file(tmp_path / "a").entry
    write_file(tmp_path / "a", NUMBERS[::-1])
    with pytest.raises(DamagedError, match="it is not the file that the index registered"):
        ColumnFile(tmp_path / "a", entry)


def test_a_file_can_be_read_without_its_entry(tmp_path):
    entry = write_file(tmp_path / "a").entry
    size = (tmp_path / "a").stat().st_size
    assert ColumnFile(tmp_path / "a").entry == entry == FileEntry(len(NUMBERS), size, entry.checksum)


def test_columns_in_pieces_and_without_rows(tmp_path):
    pieces = (np.arange(n, n + 10_000, dtype="<u4") for n in range(0, 40_000, 10_000))
    columns = [FileColumn("long", "<u4", (40_000,), pieces), array_column("empty", np.zeros((0, 4), np.float16))]
    write_columns(tmp_path / "a", 3, columns, {})
    file = ColumnFile(tmp_path / "a")
    assert np.array_equal(file.column("long"), np.arange(40_000))
    assert file.column("empty").shape == (0, 4)


def test_a_file_that_cannot_be_finished_is_removed(tmp_path):
    def broken():
        yield np.zeros(9, np.uint8)
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_columns(tmp_path / "a", 1, [FileColumn("x", "|u1", (18,), broken())], {})
    assert list(tmp_path.iterdir()) == []
