"""A sample of the flipped bits of `benchmarks/bit_flips.py`."""

import logging

import pytest

from anchorfold.index import candidate_files, scan
from anchorfold.index.store import column_file
from benchmarks.bit_flips import Flip, Flipper, choose_flips, use_small_limits


@pytest.fixture(scope="module")
def flipper(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for module, name in (
            (column_file, "BLOCK"),
            (candidate_files, "FIRST_PAGES"),
            (candidate_files, "LISTED_ROWS"),
            (scan, "CANDIDATES"),
            (scan, "FEW_PAGES"),
        ):
            patch.setattr(module, name, getattr(module, name))  # restored afterwards
        use_small_limits()
        logging.disable(logging.WARNING)
        yield Flipper(tmp_path_factory.mktemp("flips"))
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_flipped_bit_is_detected_and_never_changes_an_answer(flipper, seed):
    problems = {flip: flipper.violations(flip) for flip in choose_flips(flipper.template, 20, seed)}
    assert {flip: found for flip, found in problems.items() if found} == {}


@pytest.mark.parametrize("byte", [18, 19, 27, 47, 63, 67, 71])
def test_a_flipped_bit_in_the_header_of_the_database_is_detected_and_repaired(flipper, byte):
    problems = {bit: flipper.violations(Flip("index.db", byte, bit)) for bit in (0, 2)}
    assert {bit: found for bit, found in problems.items() if found} == {}


def test_the_index_has_posting_lists(flipper):
    names = {path.name for path in (flipper.template / "vectors").iterdir()}
    assert {"00000001.ivf", "00000002.ivf", "centroids.ivf"} <= names
