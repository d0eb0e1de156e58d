"""Workers, nodes and drivers that die during indexing on two real nodes: no page is lost or stored twice."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from anchorfold.cluster import Cluster
from anchorfold.errors import DiskFullError
from anchorfold.ingestion.progress import WorkerProgress
from anchorfold.retrieval.embedded_store import EmbeddedStore
from tests.cluster.conftest import NODE_SECONDS, PAGES, ensure_nodes, living
from tests.cluster.contents import contents
from tests.cluster.nodes import ROOT
from tests.cluster.stand_in import DEADLY, UNEXPECTED
from tests.number_reader import write_pdf

pytestmark = pytest.mark.slow

DRIVER = """
import sys
from anchorfold import Index
from anchorfold.cluster import Cluster
from anchorfold.ingestion import ingest
ingest.COMMIT_PAGES = 4
index = Index.open(sys.argv[2])
print("ready", flush=True)
cluster = Cluster(sys.argv[3], workers=2, task_pages=8)
index.add(sys.argv[1], cluster=cluster, progress=lambda p: print(p.pages, flush=True))
"""


@pytest.fixture
def expected(make_index, documents):
    """What one process makes of the documents."""
    alone = make_index("alone")
    alone.add(documents)
    return contents(alone)


def process_of(worker) -> int:
    return int(worker.name.rpartition(":")[2])


def test_workers_that_are_killed_are_replaced(cluster, make_index, documents, expected):
    index = make_index()
    killed: list[int] = []
    last: list[WorkerProgress] = []

    def progress(state):
        last[:] = state.workers
        if state.pages >= 20 * (len(killed) + 1) and len(killed) < 3:
            victim = next(w for w in state.workers if not w.dead and process_of(w) not in killed)
            killed.append(process_of(victim))
            os.kill(killed[-1], signal.SIGKILL)

    report = index.add(documents, cluster=cluster, progress=progress)
    assert report.skipped == []
    assert contents(index) == expected
    assert {process_of(worker) for worker in last if worker.dead} <= set(killed)
    assert len(killed) == 3


def test_a_document_that_kills_three_workers_is_skipped(nodes, make_index, documents, expected):
    write_pdf(documents / "deadly.pdf", [301, 302, DEADLY])
    write_pdf(documents / "surprising.pdf", [303, UNEXPECTED])
    index = make_index()
    last: list[WorkerProgress] = []
    report = index.add(
        documents,
        cluster=Cluster(nodes.address, workers=2),
        progress=lambda p: last.__setitem__(slice(None), p.workers),
    )
    assert sorted((os.path.basename(name), why) for name, why in report.skipped) == [
        ("deadly.pdf", "ended three workers that read it"),
        ("surprising.pdf", "cannot be read by the workers (KeyError('surprise'))"),
    ]
    assert contents(index) == expected
    assert sum(worker.dead for worker in last) == 3


def test_a_dead_node_is_replaced_by_a_new_one(nodes, make_index, documents, expected, tmp_path):
    index = make_index()
    workers: list[WorkerProgress] = []
    steps: list[str] = []

    def progress(state):
        workers[:] = state.workers
        if state.pages >= 10 and not steps:
            nodes.kill_raylet(len(nodes.processes) - 1)
            steps.append("killed")

    assert index.add(documents, cluster=Cluster(nodes.address), progress=progress).skipped == []
    assert steps == ["killed"]
    assert contents(index) == expected
    deadline = time.monotonic() + NODE_SECONDS
    while living() > 1:
        assert time.monotonic() < deadline
        time.sleep(0.1)

    many = write_pdf(tmp_path / "many.pdf", [100 + number % 400 for number in range(900)])

    def add_a_node(state):
        workers[:] = state.workers
        if len(steps) == 1 and workers:
            ensure_nodes(nodes, 2)
            steps.append("added")
        time.sleep(0.05)  # the first worker waits for the committer, and so for the second one's start

    busy = lambda: len(workers) == 2 and workers[1].pages > 0  # noqa: E731
    workers.clear()
    index.add(many, cluster=Cluster(nodes.address, task_pages=8), progress=add_a_node, stop=busy)
    assert busy(), "the new node did nothing"


def test_an_unresponsive_node_is_replaced(nodes, make_index, documents, expected):
    """As when the network between the driver and a node is cut: connections stay, and nothing comes."""
    index, number = make_index(), len(nodes.processes) - 1
    silenced: list[psutil.Process] = []

    def progress(state):
        if state.pages >= 10 and not silenced:
            silenced.extend([nodes.raylet(number), *nodes.raylet(number).children(recursive=True)])
            for process in silenced:
                process.suspend()

    report = index.add(documents, cluster=Cluster(nodes.address), progress=progress)
    nodes.stop(number)
    assert silenced
    assert report.skipped == []
    assert contents(index) == expected


def test_a_killed_driver_loses_no_committed_page(nodes, make_index, documents, expected):
    index = make_index()
    command = [sys.executable, "-c", DRIVER, documents, index.path, nodes.address]
    environment = {**nodes.environment, "PYTHONPATH": f"{nodes.path}{os.pathsep}{ROOT}"}
    driver = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    for line in driver.stdout:
        if line.strip().isdigit() and int(line) >= 30:
            break
    driver.kill()
    driver.communicate()
    before = contents(index)
    assert 0 < len(before) < PAGES
    report = index.add(documents)
    assert report.pages == PAGES - len(before)
    after = contents(index)
    assert after == expected
    assert before.items() <= after.items()


def test_a_full_disk_is_an_error_and_the_run_can_be_repeated(one_worker, make_index, documents, expected, monkeypatch):
    index = make_index()
    append, commits = EmbeddedStore.append, []

    def full_after_one(store, rows):
        commits.append(len(rows))
        if len(commits) > 1:
            raise DiskFullError("the disk is full.")
        append(store, rows)

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedStore, "append", full_after_one)
        with pytest.raises(DiskFullError, match="disk is full"):
            index.add(documents, cluster=one_worker)
    assert len(contents(index)) == commits[0]
    index.add(documents)
    assert contents(index) == expected
