"""Kill random workers, nodes and drivers of a cluster, and check after every run for lost or duplicate pages.

    python -m benchmarks.cluster_soak --kills 20 --seed 1
    python -m benchmarks.cluster_soak --kills 20 --seed 1 --network    # as root, on Linux

With `--network`, driver and head node are in one network namespace and the other node is in a second one; the link
between them is interrupted at random.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from anchorfold import Index, Pooling1D
from tests.cluster.contents import contents
from tests.cluster.nodes import Nodes
from tests.cluster.stand_in import ClusterReader
from tests.number_reader import write_pdf

DRIVER = """
import sys
from anchorfold import Index
from anchorfold.cluster import Cluster
from anchorfold.ingestion import ingest
ingest.COMMIT_PAGES = 8
index = Index.open(sys.argv[2])
cluster = Cluster(sys.argv[3], task_pages=8)
report = index.add(sys.argv[1], prune=True, cluster=cluster, progress=lambda p: print(p.pages, flush=True))
print("done", report.skipped, flush=True)
"""


CUT_SECONDS = (1, 12)  # below and above the timeout of the node health checks


def workers(nodes: Nodes) -> list[psutil.Process]:
    everything = [process for number in range(len(nodes.processes)) for process in nodes.below(number)]
    return [process for process in everything if is_worker(process)]


def is_worker(process: psutil.Process) -> bool:
    try:
        return any("ray::Worker" in part for part in process.cmdline())
    except psutil.Error:
        return False


HOSTS = ("10.203.0.1", "10.203.0.2")


@contextmanager
def namespaces() -> Iterator[tuple[str, str]]:
    """Create two network namespaces with a link between them."""
    first, second = names = tuple(f"anchorfold-{os.getpid()}-{end}" for end in "ab")
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", first, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second)
        for name, host in zip(names, HOSTS, strict=True):
            ip("-n", name, "address", "add", f"{host}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
        yield first, second
    finally:
        for name in names:
            ip("netns", "delete", name)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Soak:
    """Changing documents, their index, and random kills."""

    def __init__(self, nodes: Nodes, folder: Path, rng: random.Random, namespace: str | None) -> None:
        self.nodes, self.folder, self.rng, self.namespace = nodes, folder, rng, namespace
        self.kills: Counter[str] = Counter()
        self.documents: dict[str, int] = {}
        self.index = Index.create(folder / "my.index", ClusterReader(), Pooling1D(ratio=0.25))
        self.lines: list[str] = []

    def change_documents(self) -> None:
        """Add and replace documents."""
        for _ in range(15):
            name = f"{self.rng.randrange(40)}.pdf"
            first, pages = self.rng.randrange(400), self.rng.choice([1, 2, 5, 20, 60])
            write_pdf(self.folder / "docs" / name, list(range(first, first + pages)))
            self.documents[name] = pages

    def kill_something(self, driver: subprocess.Popen[str]) -> None:
        """Kill a worker (most often), a node or the driver, or interrupt the network link."""
        kind = self.rng.choices(["worker", "node", "driver", "link"], [6, 2, 2, 4 if self.namespace else 0])[0]
        if kind == "driver":
            driver.kill()
        elif kind == "worker":
            there = workers(self.nodes)
            if not there:
                return
            self.rng.choice(there).kill()
        elif kind == "node":
            try:
                self.nodes.kill_raylet(len(self.nodes.processes) - 1)
            except StopIteration:
                return
            self.replace_node()
        else:
            assert self.namespace
            seconds = self.rng.choice(CUT_SECONDS)
            ip("-n", self.namespace, "link", "set", "cable", "down")
            time.sleep(seconds)
            ip("-n", self.namespace, "link", "set", "cable", "up")
            if seconds == max(CUT_SECONDS):
                self.replace_node()
        self.kills[kind] += 1
        print(f"{'cut' if kind == 'link' else 'killed'} a {kind}", flush=True)

    def replace_node(self) -> None:
        """Stop the last node if it is running, and start a new one."""
        self.nodes.stop(len(self.nodes.processes) - 1)
        self.nodes.add()

    def run(self, killing: bool) -> bool:
        """Run indexing once and return whether it finished."""
        documents, index = str(self.folder / "docs"), str(self.folder / "my.index")
        command = [sys.executable, "-c", DRIVER, documents, index, self.nodes.address]
        driver = subprocess.Popen(
            command, env=self.nodes.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(driver.stdout or ()))
        reader.start()
        # By pages instead of time, so that slow machines make progress too.
        due = self.rng.choice([0, 5, 20, 60])
        while driver.poll() is None:
            time.sleep(0.05)
            if killing and len(lines) > due:
                self.kill_something(driver)
                due = len(lines) + self.rng.choice([0, 5, 20, 60])
        reader.join()
        output = "".join(lines)
        finished = "done" in output
        if finished:
            self.lines.append(output.strip().splitlines()[-1])
        elif driver.returncode not in (-9, 0):
            print(output[-2000:])
            raise AssertionError(f"the driver ended by itself with {driver.returncode}")
        return finished

    def check(self, complete: bool) -> int:
        """Check for duplicate pages and, after a complete run, that all pages equal those of a single process."""
        pages = contents(self.index)
        if complete:
            counts = Counter(os.path.basename(document) for document, _ in pages)
            assert counts == Counter(self.documents), (counts, self.documents)
            alone = Index.create(self.folder / "alone", ClusterReader(), Pooling1D(ratio=0.25))
            alone.add(self.folder / "docs")
            assert contents(alone) == pages
            shutil.rmtree(self.folder / "alone")
        return len(pages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--network", action="store_true", help="cut the network between the nodes as well")
    parser.add_argument("--namespace", help=argparse.SUPPRESS)  # of the other node, if this process runs in the first
    arguments = parser.parse_args()
    if arguments.network:
        with namespaces() as (first, second):
            command = ["ip", "netns", "exec", first, sys.executable, "-m", "benchmarks.cluster_soak"]
            options = ["--kills", str(arguments.kills), "--seed", str(arguments.seed), "--namespace", second]
            sys.exit(subprocess.run([*command, *options], check=False).returncode)
    endure(arguments.kills, random.Random(arguments.seed), arguments.namespace)


def endure(kills: int, rng: random.Random, namespace: str | None) -> None:
    folder = Path(tempfile.mkdtemp(prefix="anchorfold-cluster-soak-"))
    began, runs, finished = time.monotonic(), 0, 0
    apart: dict[str, Any] = {"hosts": HOSTS, "prefix": ["ip", "netns", "exec", namespace]} if namespace else {}
    try:
        with Nodes(seconds=0.01, **apart) as nodes:
            nodes.add()
            soak = Soak(nodes, folder, rng, namespace)
            while soak.kills.total() < kills:
                soak.change_documents()
                complete = False
                while not complete:
                    complete = soak.run(killing=soak.kills.total() < kills)
                    runs += 1
                    skipped = complete and not soak.lines[-1].endswith("[]")
                    pages = soak.check(complete and not skipped)
                    print(f"{time.monotonic() - began:.0f} s: kills {dict(soak.kills)}, {pages} pages", flush=True)
                    if skipped:  # the same pages were lost three times: another run reads them
                        print(soak.lines[-1])
                        complete = False
                finished += 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    total = f"{soak.kills.total()} kills {dict(soak.kills)}, {runs} runs, {finished} whole ones"
    print(f"{total}: nothing lost, nothing twice")


if __name__ == "__main__":
    main()
