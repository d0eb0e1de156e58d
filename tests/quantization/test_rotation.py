import hashlib

import numpy as np
import pytest

from anchorfold.quantization.rotation import Rotation, hadamard


@pytest.mark.parametrize("dim", [1, 2, 3, 16, 100, 128, 320, 3072])
def test_it_is_orthogonal(dim):
    vectors = np.random.default_rng(dim).normal(size=(20, dim)).astype(np.float32)
    rotated = Rotation(dim)(vectors)
    assert np.allclose(rotated @ rotated.T, vectors @ vectors.T, atol=1e-3 * dim**0.5)
    assert np.allclose(Rotation(dim).inverse(rotated), vectors, atol=1e-4)


@pytest.mark.parametrize("dim", [128, 320, 3072])
def test_it_spreads_what_lies_in_one_coordinate(dim):
    spikes = np.eye(dim, dtype=np.float32)[:: max(1, dim // 50)]
    assert np.abs(Rotation(dim)(spikes)).max() < 12 / dim**0.5


def test_hadamard_is_the_textbook_one():
    scipy = pytest.importorskip("scipy.linalg")
    for width in (1, 2, 8, 64, 128):
        assert np.allclose(hadamard(np.eye(width, dtype=np.float32)), scipy.hadamard(width) / width**0.5, atol=1e-6)


def test_it_is_the_same_for_ever():
    # An index that exists must stay readable: if this fails, the change breaks every one of them.
    signs = b"".join(np.packbits(Rotation(dim, seed).signs > 0).tobytes() for dim, seed in ((128, 0), (320, 0), (6, 7)))
    assert hashlib.sha256(signs).hexdigest()[:16] == "abc0be35daf7d0e9"
    assert not np.array_equal(Rotation(128, 1).signs, Rotation(128, 0).signs)
