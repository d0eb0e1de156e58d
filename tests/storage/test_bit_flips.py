"""A sample of the flipped bits of `benchmarks/bit_flips.py`."""

import logging

import pytest

from benchmarks.bit_flips import LIMITS, Flip, Flipper, choose_flips


@pytest.fixture(scope="module")
def flipper(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for limit in LIMITS:
            patch.setattr(*limit)
        logging.disable(logging.WARNING)
        yield Flipper(tmp_path_factory.mktemp("flips"))
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_flipped_bit_is_detected_and_never_changes_an_answer(flipper, seed):
    problems = {flip: flipper.violations(flip) for flip in choose_flips(flipper.template, 20, seed)}
    assert {flip: found for flip, found in problems.items() if found} == {}


@pytest.mark.parametrize(("byte", "bit"), [(6126, 7), (57386, 3)])
def test_a_flipped_bit_that_changes_a_name_or_a_type_is_repaired(flipper, byte, bit):
    assert flipper.violations(Flip("index.db", byte, bit)) == []


@pytest.mark.parametrize("byte", [18, 19, 27, 47, 63, 67, 71])
def test_a_flipped_bit_in_the_header_of_the_database_is_detected_and_repaired(flipper, byte):
    problems = {bit: flipper.violations(Flip("index.db", byte, bit)) for bit in (0, 2)}
    assert {bit: found for bit, found in problems.items() if found} == {}


def test_the_index_has_posting_lists(flipper):
    names = {path.name for path in (flipper.template / "vectors").iterdir()}
    assert {"00000001.ivf", "00000002.ivf", "centroids.ivf"} <= names
