"""Worker pool of a run: starts workers, assigns tasks, and replaces workers that die."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from anchorfold import __version__
from anchorfold.cluster.file_transfer import FileReader
from anchorfold.cluster.task_queue import Task, TaskQueue
from anchorfold.cluster.worker import Worker
from anchorfold.cluster.worker_messages import TaskResult, WorkerStarted
from anchorfold.errors import AnchorFoldError, BrokenModelError
from anchorfold.ingestion.encoded_pages import EncodingJob
from anchorfold.ingestion.progress import WorkerProgress

_log = logging.getLogger(__name__)
TASKS_PER_WORKER = 2  # one is rendered while the other is encoded
CHECK_SECONDS = 1.0  # between two checks for missing workers
MAX_FAILED_STARTS = 5  # consecutive failures before the run is aborted
WARNING_SECONDS = 30.0  # without any worker, before a warning
CLOSE_SECONDS = 2.0


@dataclass(frozen=True)
class PoolSize:
    """Number of workers (None: as many as fit on the cluster), and CPUs and GPUs per worker."""

    workers: int | None
    cpus: float
    gpus: float

    def worker_count(self, nodes: list[dict[str, Any]]) -> int:
        """Return the number of workers for the nodes of `ray.nodes()`; at least one, which may be pending."""
        if self.workers is not None:
            return self.workers
        needs = {name: amount for name, amount in (("CPU", self.cpus), ("GPU", self.gpus)) if amount}
        alive = [node["Resources"] for node in nodes if node["Alive"]]
        return max(1, sum(min(int(node.get(name, 0) / amount) for name, amount in needs.items()) for node in alive))


@dataclass
class LostTask:
    """A task without a result: its worker died or raised. `reason` is reported if its documents are skipped."""

    reason: str
    worker_died: bool


@dataclass
class _WorkerHandle:
    actor: Any
    start: Any  # reference of the pending start, None once started
    progress: WorkerProgress
    started_at: float = 0.0
    tasks: dict[Any, Task] = field(default_factory=dict)
    dead: bool = False

    @property
    def exclusive(self) -> bool:
        """Whether its current task must run alone."""
        return any(task.exclusive for task in self.tasks.values())


class WorkerPool:
    """Worker pool on a Ray cluster. Use as a context manager.

    Args:
        ray: the connected Ray module.
        job: encoding settings of the index.
        size: number of workers and resources per worker.
        shared: whether workers may read documents from the same paths.
    """

    def __init__(self, ray: Any, job: EncodingJob, size: PoolSize, shared: bool) -> None:
        self.ray, self.job, self.size, self.shared = ray, job, size, shared
        self.progress: list[WorkerProgress] = []
        self._handles: list[_WorkerHandle] = []
        self._checked_at = 0.0
        self._failed_starts = 0
        self._running_at = time.monotonic()  # last time a worker was running
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._files = ray.remote(FileReader).options(
            num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=8, scheduling_strategy=here
        ).remote()  # fmt: skip
        self._worker = ray.remote(Worker).options(
            num_cpus=size.cpus, num_gpus=size.gpus, max_restarts=0, max_concurrency=TASKS_PER_WORKER,
            scheduling_strategy="SPREAD",
        )  # fmt: skip

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        idle = [m.actor.close.remote() for m in self._handles if m.start is None and not m.tasks]
        if idle:
            self.ray.wait(idle, num_returns=len(idle), timeout=CLOSE_SECONDS)
        for handle in self._handles:
            self.ray.kill(handle.actor)
        self.ray.kill(self._files)

    @property
    def busy(self) -> bool:
        """Whether any task is running."""
        return any(handle.tasks for handle in self._handles)

    @property
    def count(self) -> int:
        """Number of running and starting workers, at least 1."""
        return max(1, len(self._handles))

    def start_missing_workers(self) -> None:
        """Start missing workers; calls within `CHECK_SECONDS` of the last check do nothing."""
        now = time.monotonic()
        if now - self._checked_at < CHECK_SECONDS:
            return
        self._checked_at = now
        missing = self.size.worker_count(self.ray.nodes()) - sum(not handle.dead for handle in self._handles)
        for _ in range(missing):
            actor = self._worker.remote(__version__, self.job, self._files, self.shared)
            self._handles.append(_WorkerHandle(actor, actor.start.remote(), WorkerProgress("")))
        if any(handle.start is None for handle in self._handles):
            self._running_at = now
        elif now - self._running_at > WARNING_SECONDS:
            self._running_at = float("inf")
            gpus = f" and {self.size.gpus:g} GPUs" if self.size.gpus else ""
            warnings.warn(
                f"no worker has started yet: each waits for a node with {self.size.cpus:g} CPUs{gpus} to spare, or for "
                "its model.", stacklevel=2,
            )  # fmt: skip

    def assign(self, tasks: TaskQueue) -> None:
        """Assign tasks to workers, idle ones first."""
        for level in range(TASKS_PER_WORKER):
            for handle in self._handles:
                if handle.start is not None or handle.dead or len(handle.tasks) != level or handle.exclusive:
                    continue
                task = tasks.next_task(self.count, idle=level == 0)
                if task is not None:
                    handle.tasks[handle.actor.encode.remote(task.parts, tasks.pages)] = task

    def wait(self, seconds: float) -> Iterator[tuple[Task, TaskResult | LostTask]]:
        """Yield completed and lost tasks; nothing if there are none within the timeout.

        Raises:
            BrokenModelError: a worker cannot load or run its model.
        """
        handles = {ref: handle for handle in self._handles for ref in (handle.start, *handle.tasks) if ref is not None}
        if not handles:
            time.sleep(seconds)
            return
        done, _ = self.ray.wait(list(handles), num_returns=1, timeout=seconds)
        if done:
            done, _ = self.ray.wait(list(handles), num_returns=len(handles), timeout=0)
        for ref in done:
            handle = handles[ref]
            if ref is handle.start:
                self._finish_start(handle)
                continue
            task = handle.tasks.pop(ref)
            outcome = self._result(handle, ref)
            if handle.dead and not handle.tasks:
                self._handles.remove(handle)
            yield task, outcome

    def _result(self, handle: _WorkerHandle, ref: Any) -> TaskResult | LostTask:
        errors = self.ray.exceptions
        try:
            result: TaskResult = self.ray.get(ref)
        except errors.RayTaskError as error:
            _log.warning("%s: %r", handle.progress.name, error.cause)
            _log.debug("%s", error)
            return LostTask(f"cannot be read by the workers ({error.cause!r})", worker_died=False)
        except errors.RayError as error:
            self._mark_dead(handle, error)
            return LostTask("ended three workers that read it", worker_died=True)
        if result.broken is not None:
            raise BrokenModelError(result.broken)
        handle.progress.pages += sum(len(part.packed.numbers) for part in result.results if part.packed is not None)
        handle.progress.seconds = time.monotonic() - handle.started_at
        return result

    def _finish_start(self, handle: _WorkerHandle) -> None:
        try:
            started: WorkerStarted = self.ray.get(handle.start)
        except self.ray.exceptions.RayTaskError:
            raise  # an error of our code, which would occur on every worker
        except self.ray.exceptions.RayError as error:
            self._failed_starts += 1
            self._mark_dead(handle, error)
            self._handles.remove(handle)
            if self._failed_starts >= MAX_FAILED_STARTS:
                last = str(error).strip().splitlines()[-1]
                raise AnchorFoldError(f"workers do not start: {last}") from error
            return
        if started.problem is not None:
            raise BrokenModelError(started.problem)
        self._failed_starts = 0
        handle.start, handle.started_at = None, time.monotonic()
        handle.progress.name = f"{started.host}:{started.process}"
        self.progress.append(handle.progress)
        _log.info("worker %s started", handle.progress.name)

    def _mark_dead(self, handle: _WorkerHandle, error: Exception) -> None:
        """Mark a worker as dead; Ray reports its other tasks as lost separately."""
        if handle.dead:
            return
        handle.dead = handle.progress.dead = True
        _log.warning("worker %s died: %s", handle.progress.name or "(starting)", str(error).splitlines()[0])
        self.ray.kill(handle.actor)  # it may still run but be unreachable
        self._checked_at = 0.0
