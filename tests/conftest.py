"""Tiny random checkpoints of the true architectures, made once a session and loaded through the public path."""

import contextlib
import os
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

import anchorfold
from anchorfold.testing import tiny
from tests.report_pages import write_report

# One of several processes takes one core. A process alone takes two: more threads wait for each other.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)

KINDS = list(tiny.MAKERS)


SHARED = {"two_nodes": "cluster", "served_folder": "serve"}  # what takes long to make, and who stays together for it


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """For several processes: a file's tests stay together for what they share, and so do all that share more."""
    for item in items:
        groups = [group for fixture, group in SHARED.items() if fixture in item.fixturenames]
        item.add_marker(pytest.mark.xdist_group(groups[0] if groups else item.nodeid.split("::")[0]))


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


@pytest.fixture(scope="session")
def report_folder(tmp_path_factory):
    """reports/ with a PDF of two pages and a picture without text, and my.index of them, made with nano."""
    folder = tmp_path_factory.mktemp("report")
    write_report(folder)
    Image.new("RGB", (300, 400), "white").save(folder / "reports" / "scan.png")
    with contextlib.chdir(folder):
        anchorfold.Index.create("my.index", compressor=anchorfold.AnchorFold(ratio=0.1)).add("reports")
    return folder


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", anchorfold.UncalibratedWarning)
        warnings.simplefilter("ignore", anchorfold.CausalBackboneWarning)
        yield
