import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchorfold.core.budget import vector_budget


@pytest.mark.parametrize(
    ("n", "ratio", "m"),
    [(100, 0.07, 7), (1024, 0.1, 103), (10, 0.2, 2), (1, 0.05, 1), (0, 0.5, 0), (7, 1, 7), (7, 1.0, 7)],
)
def test_ratio(n, ratio, m):
    assert vector_budget(n, ratio=ratio) == m


@given(st.integers(0, 5000), st.integers(1, 1000))
def test_ratio_is_exact(n, thousandths):
    assert vector_budget(n, ratio=thousandths / 1000) == math.ceil(Fraction(thousandths, 1000) * n)


@pytest.mark.parametrize("ratio", [np.float32(0.07), np.float64(0.07), Decimal("0.07")])
def test_other_number_types(ratio):
    assert vector_budget(100, ratio=ratio) == 7


def test_cap():
    assert vector_budget(1000, cap=128) == 128
    assert vector_budget(100, cap=128) == 100


@pytest.mark.parametrize("ratio", [0, -0.1, 1.0001, float("nan"), float("inf"), "lots"])
def test_bad_ratio(ratio):
    with pytest.raises(ValueError, match="ratio"):
        vector_budget(10, ratio=ratio)


@pytest.mark.parametrize("cap", [0, -1, 1.5, True])
def test_bad_cap(cap):
    with pytest.raises(ValueError, match="cap"):
        vector_budget(10, cap=cap)


def test_exactly_one_of_both():
    for ratio, cap in ((None, None), (0.1, 5)):
        with pytest.raises(ValueError, match="exactly one"):
            vector_budget(10, ratio=ratio, cap=cap)


def test_negative_page():
    with pytest.raises(ValueError, match="at least 0, got -1"):
        vector_budget(-1, ratio=0.5)
