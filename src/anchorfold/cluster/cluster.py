"""`Cluster`: what `Index.add` takes to encode on other machines."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager

from anchorfold.cluster.connection import connection
from anchorfold.cluster.crew import Crew, CrewSize, Lost
from anchorfold.cluster.work import Task, Work
from anchorfold.documents.rendering import Request
from anchorfold.errors import AnchorFoldError
from anchorfold.index.progress import WorkerProgress
from anchorfold.index.source import PageEvent, Recipe

TASK_PAGES = 16
WAIT_SECONDS = 0.5  # between two looks at whether to stop
STOP_SECONDS = 60.0  # that tasks under way are waited for when a run is stopped


class Cluster:
    """A Ray cluster as a source of encoded pages. Workers load the index's model; this process commits.

    >>> index.add("reports", cluster=Cluster("10.0.0.1:6379", gpus=1))  # doctest: +SKIP

    Args:
        address: `auto` for the cluster that this machine is a node of, `local` for one of this machine alone, or the
            `host:port` of a head node.
        workers: how many; as many as there is room for if None, also on nodes that come later.
        cpus: a worker.
        gpus: a worker; one if any node has some, else none, if None.
        shared: whether workers may read documents from the paths that they have here. What they do not find there with
            the same size and time is sent to them.
        task_pages: pages of a task; a longer document is shared among workers.
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
    def source(self, recipe: Recipe) -> Iterator[ClusterSource]:
        """Workers that make pages by a recipe, for the time of one run."""
        with connection(self.address) as ray:
            gpus = self.gpus if self.gpus is not None else float(ray.cluster_resources().get("GPU", 0) > 0)
            with Crew(ray, recipe, CrewSize(self.workers, self.cpus, gpus), self.shared) as crew:
                yield ClusterSource(crew, max(self.task_pages, recipe.batch_size or 1))


class ClusterSource:
    """Pages from a crew of workers.

    Args:
        crew: the workers.
        task_pages: pages of a task.
    """

    def __init__(self, crew: Crew, task_pages: int) -> None:
        self.crew, self.task_pages = crew, task_pages

    @property
    def workers(self) -> Sequence[WorkerProgress]:
        """All that were ever there."""
        return self.crew.progress

    def events(self, requests: Sequence[Request], stop: Callable[[], bool]) -> Generator[PageEvent, None, None]:
        """In the order in which workers finish. No task is given while whoever iterates is busy: memory stays flat."""
        work = Work(requests, self.task_pages)
        deadline: float | None = None
        while work.left:
            if deadline is None and stop():
                deadline = time.monotonic() + STOP_SECONDS
            if deadline is None:
                self.crew.supervise()
                self._assign(work)
            elif not self.crew.busy or time.monotonic() > deadline:
                return
            for task, outcome in self.crew.wait(WAIT_SECONDS):
                if isinstance(outcome, Lost):
                    events = work.lose(task, outcome.why, outcome.died)
                else:
                    events = work.take(task, outcome, self.crew.count)
                if deadline is None and not stop():
                    self._assign(work)  # before the events: the worker goes on while they are committed
                yield from events

    def _assign(self, work: Work) -> None:
        def next_task(idle: bool) -> Task | None:
            return work.next_task(self.crew.count, idle)

        self.crew.assign(next_task, self.task_pages)
