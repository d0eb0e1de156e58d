"""Two real nodes on this machine, started once."""

import time

import pytest

from anchorfold import Index, Pooling1D
from anchorfold.backbones.checkpoint import BACKBONES
from anchorfold.cluster import Cluster
from tests.cluster.nodes import SETTINGS, Nodes
from tests.cluster.stand_in import BACKBONE, NAME, ClusterReader
from tests.number_reader import write_pdf

NODE_SECONDS = 60


@pytest.fixture(scope="session")
def two_nodes():
    """A cluster that this process is connected to."""
    import ray

    with pytest.MonkeyPatch.context() as patch, Nodes(seconds=0.01) as nodes:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        BACKBONES.register(NAME, BACKBONE)
        ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
        yield nodes
        ray.shutdown()
        BACKBONES.unregister(NAME)


@pytest.fixture
def nodes(two_nodes):
    """The cluster with its head and one more node, whatever tests did to it before."""
    ensure_nodes(two_nodes, 2)
    return two_nodes


def living() -> int:
    import ray

    return sum(node["Alive"] for node in ray.nodes())


def ensure_nodes(nodes: Nodes, count: int) -> None:
    if living() < count:
        nodes.add()
    deadline = time.monotonic() + NODE_SECONDS
    while living() < count:
        assert time.monotonic() < deadline, "the node does not start"
        time.sleep(0.1)


@pytest.fixture
def make_index(tmp_path):
    """An empty index for the stand-in."""

    def make(name: str = "my.index") -> Index:
        return Index.create(tmp_path / name, ClusterReader(), Pooling1D(ratio=0.25))

    return make


@pytest.fixture
def documents(tmp_path):
    """Nine PDFs of 1 to 9 pages, and one of 70."""
    folder = tmp_path / "docs"
    for d in range(1, 10):
        write_pdf(folder / f"{d}.pdf", list(range(10 * d, 11 * d)))
    write_pdf(folder / "long.pdf", list(range(200, 270)))
    return folder


PAGES = sum(range(1, 10)) + 70


@pytest.fixture
def cluster(nodes):
    return Cluster(nodes.address, workers=2, task_pages=8)


@pytest.fixture
def one_worker(two_nodes):
    """Where a second one would prove nothing: each takes seconds to start."""
    return Cluster(two_nodes.address, workers=1, task_pages=8)
