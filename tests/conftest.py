"""Tiny random checkpoints of the true architectures, made once a session and loaded through the public path."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import anchorfold
from anchorfold.testing import tiny

torch.set_num_threads(2)

KINDS = list(tiny.MAKERS)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory):
    """Calibrations of tests, also those in processes of their own, stay out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ANCHORFOLD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return {kind: tiny.make(kind, folder / kind) for kind in tiny.MAKERS}


@pytest.fixture(scope="session")
def models(checkpoints):
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, folder in checkpoints.items():
            found[kind] = anchorfold.load(folder, device="cpu")
    return found


@pytest.fixture(scope="session")
def images():
    """Pages of several shapes: portrait, landscape, square, very tall."""
    rng = np.random.default_rng(7)
    sizes = [(200, 150), (120, 240), (90, 90), (300, 60)]
    return [Image.fromarray(rng.integers(0, 255, (h, w, 3), dtype=np.uint8)) for h, w in sizes]


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", anchorfold.UncalibratedWarning)
        warnings.simplefilter("ignore", anchorfold.CausalBackboneWarning)
        yield
