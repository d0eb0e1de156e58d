"""Files of columns: what is read was verified, and no more than that is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anchorfold.errors import DamagedError
from anchorfold.index.store.columns import BLOCK, ColumnFile, array_column, write_columns

ROWS = 5 * BLOCK // 24 + 7  # rows of 24 bytes: some lie across two blocks, and the last block is short


def fault(what: str, documents: object) -> DamagedError:
    return DamagedError(what)


@pytest.fixture
def numbers() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (ROWS, 24), np.uint8)


def written(path: Path, numbers: np.ndarray, flipped: int | None = None) -> ColumnFile:
    entry = write_columns(path, ROWS, [array_column("other", np.arange(9)), array_column("codes", numbers, long=True)])
    if flipped is not None:
        data = bytearray(path.read_bytes())
        data[flipped] ^= 1
        path.write_bytes(data)
    return ColumnFile(path, entry, fault)


def read_all(path: Path, numbers: np.ndarray, flipped: int) -> None:
    file = written(path, numbers, flipped)
    for name in file.names():
        file.column(name)


def test_rows_of_a_long_column(tmp_path, numbers):
    file = written(tmp_path / "a", numbers)
    for rows in (slice(3, 9), slice(0, 0), slice(ROWS - 2, ROWS), slice(2720, 2740), np.array([5, 1, ROWS - 1, 2730])):
        assert np.array_equal(file.rows("codes", rows), numbers[rows])
    assert np.array_equal(file.column("codes"), numbers)
    assert np.array_equal(file.rows("codes", np.array([7])), numbers[[7]])
    assert np.array_equal(file.rows("other", slice(2, 4)), [2, 3])


def test_a_flipped_bit_is_met_by_those_who_read_its_block_alone(tmp_path, numbers):
    start = 128  # of the codes: the other column takes 72 bytes, and what fills them up
    file = written(tmp_path / "a", numbers, start + BLOCK + 10)
    before, across = BLOCK // 24 - 1, BLOCK // 24  # the row across the edge has its last bytes in the broken block
    assert np.array_equal(file.rows("codes", slice(0, before + 1)), numbers[: before + 1])
    last = np.array([ROWS - 1])
    assert np.array_equal(file.rows("codes", last), numbers[last])
    for rows in (slice(across, across + 1), np.array([across]), np.array([0, across + 1])):
        with pytest.raises(DamagedError, match="its codes do not match their checksum"):
            file.rows("codes", rows)
    with pytest.raises(DamagedError, match="its codes do not match their checksum"):
        file.column("codes")


@pytest.mark.parametrize("where", ["other", "filling", "checksums", "footer"])
def test_every_byte_is_under_a_checksum(tmp_path, numbers, where):
    end = 128 + numbers.nbytes
    at = {"other": 8, "filling": 100, "checksums": end + -end % 64 + 5, "footer": -40}[where]
    with pytest.raises(DamagedError):
        read_all(tmp_path / "a", numbers, at)
