"""Tiny random checkpoints of the true architectures, created once per session and loaded through `anchorfold.load`."""

import contextlib
import os
import warnings

# Some processors crash in bfloat16 products with a newer instruction set; read by torch when it first multiplies.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

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


TOGETHER = ("tests/cluster/", "tests/server/")  # one Ray cluster, one server and its index, for all files of a room


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """For several processes (`make test`): the tests of a file stay together, for what they share."""
    from xdist.scheduler import LoadScopeScheduling

    class FileScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((room for room in TOGETHER if nodeid.startswith(room)), nodeid.split("::", maxsplit=1)[0])

    return FileScheduling(config, log)


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
        warnings.simplefilter("ignore", anchorfold.errors.UncalibratedWarning)
        warnings.simplefilter("ignore", anchorfold.errors.CausalBackboneWarning)
        yield
