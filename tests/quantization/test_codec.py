import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorfold.quantization.codec import BITS, Coding


def unit_vectors(n, dim, seed=0):
    vectors = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


# The cosine that is left of a random direction: what the theory of uniform quantisers promises, a little below.
COSINE = {32: 1 - 1e-6, 16: 1 - 1e-6, 8: 0.9999, 4: 0.993, 2: 0.93, 1: 0.78}


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [6, 16, 100, 128, 320, 3072])
def test_vectors_come_back_as_well_as_their_bits_allow(bits, dim):
    coding = Coding(dim, bits)
    vectors = unit_vectors(50, dim)
    codes, scales = coding.encode(vectors)
    assert codes.shape == (50, -(-dim * bits // 8))
    assert codes.nbytes + scales.nbytes == 50 * coding.vector_bytes
    again = coding.decode(codes, scales)
    cosines = (again * vectors).sum(1) / np.linalg.norm(again, axis=1)
    if dim >= 100:
        assert cosines.mean() > COSINE[bits]
    # The product of a vector with its own code is its length squared.
    assert np.allclose((again * vectors).sum(1), 1, atol=2e-3)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dim", [6, 128, 320])
def test_products_of_packed_rows_are_those_of_decoded_vectors(bits, dim):
    coding = Coding(dim, bits)
    codes, scales = coding.encode(unit_vectors(40, dim))
    queries = 0.7 * unit_vectors(5, dim, seed=1)
    expected = coding.decode(codes, scales) @ queries.T
    assert np.allclose(coding.products(coding.rotate_queries(queries), codes, scales), expected, atol=1e-5)
    assert coding.unpack(codes).shape == (40, coding.components)


def test_vectors_in_one_coordinate_are_as_good_as_others():
    vectors = np.eye(8, 128, dtype=np.float32)
    for bits, least in ((1, 0.7), (2, 0.9), (4, 0.99)):
        coding = Coding(128, bits)
        again = coding.decode(*coding.encode(vectors))
        assert ((again * vectors).sum(1) / np.linalg.norm(again, axis=1)).min() > least


@pytest.mark.parametrize("bits", BITS)
def test_zeros_and_nothing(bits):
    coding = Coding(10, bits)
    assert np.array_equal(coding.decode(*coding.encode(np.zeros((2, 10), np.float32))), np.zeros((2, 10)))
    codes, scales = coding.encode(np.zeros((0, 10), np.float32))
    assert coding.decode(codes, scales).shape == (0, 10)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 300), st.sampled_from(BITS), st.integers(0, 5))
def test_a_row_does_not_depend_on_the_rows_beside_it(dim, bits, seed):
    coding = Coding(dim, bits, seed)
    vectors = unit_vectors(7, dim, seed)
    codes, scales = coding.encode(vectors)
    alone, scale = coding.encode(vectors[3:4])
    # Products of other shapes may round otherwise, and a number on an edge then falls to the other side.
    assert np.abs(coding.decode(codes[3:4], scales[3:4]) - coding.decode(alone, scale)).mean() < 0.02


def test_other_widths_are_refused():
    with pytest.raises(ValueError, match="3 bits"):
        Coding(8, 3)


def test_packed_codes_mean_the_same_for_ever():
    # An index that exists must stay readable: if this fails, the change breaks every one of them.
    codes = np.arange(32, dtype=np.uint8).reshape(2, 16)
    for bits, first in ((1, [-1, -1, -1, -1, -1, -1, -1, -1, 1, -1]), (2, [-3, -3, -3, -3, -1]), (4, [-15, -15, -13])):
        levels = Coding(128, bits).unpack(codes[:, : Coding(128, bits).row_bytes])
        assert levels[0, : len(first)].tolist() == first
