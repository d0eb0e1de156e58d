"""`Cluster`: encodes the pages of `Index.add` on other machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from anchorfold.cluster.connection import connection
from anchorfold.cluster.task_queue import TaskQueue
from anchorfold.cluster.worker_pool import LostTask, PoolSize, WorkerPool
from anchorfold.documents.render_events import RenderRequest
from anchorfold.errors import AnchorFoldError
from anchorfold.ingestion.encoded_pages import EncodingJob, PageEvent
from anchorfold.ingestion.progress import WorkerProgress

TASK_PAGES = 16
WAIT_SECONDS = 0.5  # between two polls of `stop`
STOP_SECONDS = 60.0  # maximum wait for running tasks after a run is stopped


class Cluster:
    """Ray cluster that encodes pages. Workers load the model of the index; this process commits.

    >>> index.add("reports", cluster=Cluster("10.0.0.1:6379", gpus=1))  # doctest: +SKIP

    Args:
        address: `auto` for the cluster of this node, `local` for a new cluster on this machine only, or the
            `host:port` of a head node.
        workers: number of workers; if None, as many as fit on the nodes, including nodes that join later.
        cpus: CPUs per worker.
        gpus: GPUs per worker; if None, one if any node has GPUs, otherwise none.
        shared: whether workers may read documents from the same paths (shared storage). Files that are missing there or
            differ in size or modification time are sent to the workers.
        task_pages: maximum pages per task; longer documents are split among workers.
    """

    def __init__(
        self,
        address: str = "auto",
        *,
        workers: int | None = None,
        cpus: float = 1.0,
        gpus: float | None = None,
        shared: bool = True,
        task_pages: int = TASK_PAGES,
    ) -> None:
        if workers is not None and workers < 1:
            raise AnchorFoldError(f"a cluster needs at least 1 worker, got {workers}.")
        if cpus < 0 or (gpus or 0) < 0 or not (cpus or gpus):
            raise AnchorFoldError(f"a worker needs a CPU or a GPU, got {cpus:g} and {gpus or 0:g}.")
        if task_pages < 1:
            raise AnchorFoldError(f"a task needs at least 1 page, got {task_pages}.")
        self.address, self.workers, self.cpus, self.gpus = address, workers, cpus, gpus
        self.shared, self.task_pages = shared, task_pages

    @contextmanager
    def source(self, job: EncodingJob) -> Iterator[ClusterPageSource]:
        """Start a worker pool for one run and stop it at the end."""
        with connection(self.address) as ray:
            gpus = self.gpus if self.gpus is not None else float(ray.cluster_resources().get("GPU", 0) > 0)
            with WorkerPool(ray, job, PoolSize(self.workers, self.cpus, gpus), self.shared) as pool:
                yield ClusterPageSource(pool, max(self.task_pages, job.batch_size or 1))


class ClusterPageSource:
    """Page source backed by a worker pool.

    Args:
        pool: the worker pool.
        task_pages: maximum pages per task.
    """

    def __init__(self, pool: WorkerPool, task_pages: int) -> None:
        self.pool, self.task_pages = pool, task_pages

    @property
    def workers(self) -> Sequence[WorkerProgress]:
        """Progress of all workers of the run, including lost ones."""
        return self.pool.progress

    def events(self, requests: Sequence[RenderRequest], stop: Callable[[], bool]) -> Generator[PageEvent, None, None]:
        """Yield events in completion order. No task is assigned while the consumer is busy, which bounds memory."""
        tasks = TaskQueue(requests, self.task_pages)
        deadline: float | None = None
        while tasks.unfinished:
            if deadline is None and stop():
                deadline = time.monotonic() + STOP_SECONDS
            if deadline is None:
                self.pool.start_missing_workers()
                self.pool.assign(tasks)
            elif not self.pool.busy or time.monotonic() > deadline:
                return
            for task, outcome in self.pool.wait(WAIT_SECONDS):
                if isinstance(outcome, LostTask):
                    events = tasks.fail(task, outcome.reason, outcome.worker_died)
                else:
                    events = tasks.complete(task, outcome, self.pool.count)
                if deadline is None and not stop():
                    self.pool.assign(tasks)  # before the events, so that workers continue during the commit
                yield from events
