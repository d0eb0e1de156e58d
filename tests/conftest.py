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


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return {kind: tiny.make(kind, folder / kind) for kind in tiny.MAKERS}


@pytest.fixture(scope="session")
def models(checkpoints):
    models = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind, folder in checkpoints.items():
            models[kind] = anchorfold.load(folder, device="cpu")
    return models


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
