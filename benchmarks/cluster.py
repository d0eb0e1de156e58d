"""Overhead and throughput of a cluster, on one machine with Ray nodes as processes.

    python -m benchmarks.cluster overhead      # Ray against a single process, nano, one encoder each
    python -m benchmarks.cluster committer     # throughput of the committer in pages per second
    python -m benchmarks.cluster scaling       # one and two workers
    python -m benchmarks.cluster shards        # query overhead of 2, 4 and 8 shards; recovery of a shard

Overhead is reported as CPU time and wall time; CPU time depends less on the load of the machine.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from anchorfold import AnchorFold, Index, Pooling1D
from anchorfold.cluster import Cluster, ShardedIndex, worker_pool
from anchorfold.cluster.sharded_index import ShardSearch
from anchorfold.cluster.worker import Worker
from anchorfold.cluster.worker_messages import DocumentPart, PackedPages, PartResult, TaskResult, WorkerStarted
from anchorfold.documents.formats import FileIdentity
from anchorfold.ingestion.progress import Progress
from anchorfold.page import EncodedPage, PatchGrid
from anchorfold.retrieval.embedded_store import EmbeddedStore
from tests.cluster.nodes import Nodes
from tests.cluster.stand_in import ClusterReader
from tests.number_reader import write_pdf

VECTORS, DIM, TOKENS = 50, 128, 1024


def documents(folder: Path, copies: int) -> Path:
    """Write several copies of the sample report and slides."""
    from anchorfold.demo.sample_documents import report, slides

    folder.mkdir()
    for i in range(copies):
        for name, pdf in (("report", report()), ("slides", slides())):
            (folder / f"{name}{i}.pdf").write_bytes(bytes(pdf.output()) + b"\n" * i)
    return folder


ENCODING = ("ray::Worker", "render_child", "raylet/raylet")  # command lines of processes whose CPU time is counted


@contextmanager
def processor_seconds(*others: str) -> Iterator[Callable[[], float]]:
    """Measure the CPU time of this process and of its children with the given command lines, in seconds."""

    def now() -> dict[int, float]:
        below = psutil.Process().children(recursive=True) if others else []
        some = [p for p in below if any(name in part for part in cmdline(p)[:4] for name in others)]
        seconds = {}
        for process in [psutil.Process(), *some]:
            try:
                times = process.cpu_times()
                seconds[process.pid] = times.user + times.system
            except psutil.Error:
                continue
        return seconds

    before = now()
    yield lambda: sum(value - before.get(pid, 0.0) for pid, value in now().items())


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def overhead(folder: Path) -> None:
    """Measure the last three quarters of a run, after models are loaded and processes started."""
    source = documents(folder / "docs", 6)

    def measured(index: Index, **options: Any) -> tuple[float, float]:
        marks: list[tuple[int, float, float]] = []
        with processor_seconds(*ENCODING) as seconds:

            def mark(progress: Progress) -> None:
                if not marks or progress.pages >= marks[-1][0] + 10:  # measuring takes time as well
                    marks.append((progress.pages, time.monotonic(), seconds()))

            index.add(source, batch_size=4, progress=mark, **options)
        (first, began, used), (last, ended, total) = marks[len(marks) // 4], marks[-1]
        return (ended - began) / (last - first), (total - used) / (last - first)

    with Nodes() as nodes:
        plain, clustered = [], []
        for i in range(3):
            plain.append(measured(Index.create(folder / f"plain{i}", "nano", AnchorFold(ratio=0.1))))
            index = Index.create(folder / f"ray{i}", "nano", AnchorFold(ratio=0.1))
            clustered.append(measured(index, cluster=Cluster(nodes.address, workers=1)))
            for name, (clock, processors) in (("plain", plain[-1]), ("Ray", clustered[-1])):
                print(f"{name}: {clock:.3f} s per page (wall time), {processors:.3f} s (CPU time)", flush=True)
    for what, at in (("wall clock", 0), ("processors", 1)):
        ratio = min(run[at] for run in clustered) / min(run[at] for run in plain)
        print(f"overhead, {what}: x{ratio:.3f} a page (best of 3 each)")


class Costless(Worker):
    """Stub worker that returns the same arrays for every page, without encoding."""

    def start(self) -> WorkerStarted:
        rng = np.random.default_rng(os.getpid())
        groups = torch.from_numpy(np.sort(rng.integers(0, VECTORS, TOKENS)))
        vectors = torch.nn.functional.normalize(torch.from_numpy(rng.normal(size=(VECTORS, DIM)).astype(np.float32)))
        grid = PatchGrid.single(32, 32)
        self.page = EncodedPage(vectors, torch.arange(VECTORS) * 20, groups, torch.full((TOKENS,), 0.05), grid)
        self.thumbnail = rng.bytes(4000)
        return WorkerStarted("costless", os.getpid())

    def encode(self, parts: Sequence[DocumentPart], budget: int) -> TaskResult:
        results, left = [], budget
        for part in parts:
            if left <= 0:
                break
            total = part.document.size  # documents of the stub have one page per byte
            numbers = part.pages if part.pages is not None else tuple(range(total))
            pages = [(number, self.page, self.thumbnail, None) for number in numbers[:left]]
            digest = hashlib.blake2b(part.document.name.encode(), digest_size=16).hexdigest()
            identity = FileIdentity(digest, total, part.document.modified)
            results.append(PartResult(identity, total, PackedPages.pack(pages), remaining=numbers[left:]))
            left -= len(pages)
        return TaskResult(results, 0.0)


def committer(folder: Path, pages: int = 8_000, length: int = 40) -> None:
    """Measure the throughput of the committer; a document has one page per byte of its file."""
    (folder / "docs").mkdir()
    for number in range(pages // length):
        (folder / "docs" / f"{number}.pdf").write_bytes(bytes(length))
    setattr(worker_pool, "Worker", Costless)  # noqa: B010
    marks: list[tuple[int, float, float, float]] = []

    class Wide(ClusterReader):
        dim = DIM

    with Nodes() as nodes:
        nodes.add()
        index = Index.create(folder / "my.index", Wide(), Pooling1D(ratio=0.05))
        with processor_seconds() as seconds:

            def mark(progress: Progress) -> None:
                if not marks or progress.pages >= marks[-1][0] + 500:
                    resident = psutil.Process().memory_info().rss / 1e6
                    marks.append((progress.pages, time.monotonic(), seconds(), resident))

            index.add(folder / "docs", cluster=Cluster(nodes.address, workers=2, task_pages=32), progress=mark)
    (first, began, used, small), (last, ended, total, large) = marks[1], marks[-1]
    print(f"committer: {(last - first) / (ended - began):.0f} pages/s (wall time), ", end="")
    print(f"{(last - first) / (total - used):.0f} a second of its processor", end="")
    print(f"; {VECTORS} vectors of {DIM}, float16, synced")
    print(f"memory of the driver: {small:.0f} MB after {first:,} pages, {large:.0f} MB after {last:,}")


def note(marks: list[tuple[int, float]], progress: Progress) -> None:
    marks.append((progress.pages, time.monotonic()))


def scaling(folder: Path) -> None:
    source = documents(folder / "docs", 6)
    rates = {}
    with Nodes() as nodes:
        nodes.add()
        for workers in (1, 2):
            marks: list[tuple[int, float]] = []
            index = Index.create(folder / f"{workers}", "nano", AnchorFold(ratio=0.1))
            cluster = Cluster(nodes.address, workers=workers)
            index.add(source, cluster=cluster, progress=partial(note, marks))
            (first, began), (last, ended) = marks[len(marks) // 3], marks[-1]
            rates[workers] = (last - first) / (ended - began)
    print(f"scaling: 2 workers index x{rates[2] / rates[1]:.2f} the pages/s of 1")


def shards(folder: Path) -> None:
    for number in range(10):
        write_pdf(folder / "docs" / f"{number}.pdf", list(range(40 * number, 40 * number + 40)))
    Index.create(folder / "my.index", ClusterReader(), Pooling1D(ratio=0.25)).add(folder / "docs")
    query = [np.asarray(q) for q in ClusterReader().encode_queries(["page 7"])]
    with Nodes() as nodes:
        import ray

        for count in (2, 4, 8):
            with ShardedIndex.open(
                folder / "my.index", ClusterReader(), address=nodes.address, shards=count, cpus=0.1, timeout=120
            ) as index:
                extra = statistics.median(router_seconds(index, query) for _ in range(200))
                print(
                    f"{count} shards: {1000 * extra:.1f} ms per query beyond the slowest shard (median of 200)",
                    flush=True,
                )
                if count == 4:
                    shard = shard_search(index).shards[0]
                    os.kill(ray.get(shard.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
                    began = time.monotonic()
                    index.search_vectors(query)
                    print(f"a killed shard answers again after {time.monotonic() - began:.1f} s", flush=True)


def shard_search(index: ShardedIndex) -> ShardSearch:
    """Return the search of an open sharded index."""
    assert isinstance(index.store, EmbeddedStore)
    search = index.store.pages
    assert isinstance(search, ShardSearch)
    return search


def router_seconds(index: ShardedIndex, query: list[np.ndarray]) -> float:
    """Return the time of a query without that of the slowest shard, in seconds."""
    search, began = shard_search(index), time.perf_counter()
    live = search.newest_scanner().live
    answers = search._query_shards(live.version, (query, 10, None), time.monotonic() + search.timeout) or []
    search._merge(live, answers, len(query), 10)
    return time.perf_counter() - began - max(answer.seconds for answer in answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["overhead", "committer", "scaling", "shards"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="anchorfold-cluster-") as folder:
        globals()[arguments.what](Path(folder))


if __name__ == "__main__":
    main()
