"""The workers of a run: started where the cluster has room, given tasks, replaced when they die."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from anchorfold import __version__
from anchorfold.cluster.shipping import FileReader
from anchorfold.cluster.tasks import TaskResult, WorkerStarted
from anchorfold.cluster.work import Task
from anchorfold.cluster.worker import Worker
from anchorfold.errors import AnchorFoldError, BrokenModelError
from anchorfold.index.progress import WorkerProgress
from anchorfold.index.source import Recipe

_log = logging.getLogger(__name__)
IN_FLIGHT = 2  # tasks a worker: one is rendered while the other is encoded
SUPERVISE_SECONDS = 1.0
FAILED_STARTS = 5  # in a row: then it is not chance
PATIENCE_SECONDS = 30.0  # without any worker, before something is said
CLOSE_SECONDS = 2.0


@dataclass(frozen=True)
class CrewSize:
    """How many workers (None: as many as the cluster has room for), and what each takes of a node."""

    workers: int | None
    cpus: float
    gpus: float

    def wanted(self, nodes: list[dict[str, Any]]) -> int:
        """Workers for a cluster with these nodes, as `ray.nodes` lists them; at least one, which may have to wait."""
        if self.workers is not None:
            return self.workers
        needs = {name: amount for name, amount in (("CPU", self.cpus), ("GPU", self.gpus)) if amount}
        room = [
            min(int(node["Resources"].get(name, 0) / amount) for name, amount in needs.items())
            for node in nodes
            if node["Alive"]
        ]
        return max(1, sum(room))


@dataclass
class Lost:
    """A task did not come back: its worker `died`, or could not do it. `why` is for a document that does it often."""

    why: str
    died: bool


@dataclass
class _Member:
    actor: Any
    start: Any  # the reference of its start, None when it has started
    progress: WorkerProgress
    began: float = 0.0
    tasks: dict[Any, Task] = field(default_factory=dict)
    gone: bool = False

    @property
    def alone(self) -> bool:
        """Whether it must get nothing beside what it has."""
        return any(task.alone for task in self.tasks.values())


class Crew:
    """Workers and what they do. Use as a context manager.

    Args:
        ray: the library, connected.
        recipe: how pages are made.
        size: how many workers, of what size.
        shared: whether workers may read documents from the same paths.
    """

    def __init__(self, ray: Any, recipe: Recipe, size: CrewSize, shared: bool) -> None:
        self.ray, self.recipe, self.size, self.shared = ray, recipe, size, shared
        self.progress: list[WorkerProgress] = []
        self._members: list[_Member] = []
        self._supervised = 0.0
        self._failed_starts = 0
        self._seen = time.monotonic()  # when there was a worker
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._files = ray.remote(FileReader).options(
            num_cpus=0, max_restarts=-1, max_task_retries=-1, max_concurrency=8, scheduling_strategy=here
        ).remote()  # fmt: skip
        self._worker = ray.remote(Worker).options(
            num_cpus=size.cpus, num_gpus=size.gpus, max_restarts=0, max_concurrency=IN_FLIGHT,
            scheduling_strategy="SPREAD",
        )  # fmt: skip

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        idle = [m.actor.close.remote() for m in self._members if m.start is None and not m.tasks]
        if idle:
            self.ray.wait(idle, num_returns=len(idle), timeout=CLOSE_SECONDS)
        for member in self._members:
            self.ray.kill(member.actor)
        self.ray.kill(self._files)

    @property
    def busy(self) -> bool:
        """Whether a task is under way."""
        return any(member.tasks for member in self._members)

    @property
    def count(self) -> int:
        """Workers that are there or are to come."""
        return max(1, len(self._members))

    def supervise(self) -> None:
        """Start workers where some are missing; now and then, called as often as you like."""
        now = time.monotonic()
        if now - self._supervised < SUPERVISE_SECONDS:
            return
        self._supervised = now
        missing = self.size.wanted(self.ray.nodes()) - sum(not member.gone for member in self._members)
        for _ in range(missing):
            actor = self._worker.remote(__version__, self.recipe, self._files, self.shared)
            self._members.append(_Member(actor, actor.start.remote(), WorkerProgress("")))
        if any(member.start is None for member in self._members):
            self._seen = now
        elif now - self._seen > PATIENCE_SECONDS:
            self._seen = float("inf")
            gpus = f" and {self.size.gpus:g} GPUs" if self.size.gpus else ""
            warnings.warn(
                f"no worker has started yet: each waits for a node with {self.size.cpus:g} CPUs{gpus} to spare, or for "
                "its model.", stacklevel=2,
            )  # fmt: skip

    def assign(self, next_task: Callable[[bool], Task | None], pages: int) -> None:
        """Give tasks to workers that have few, of at most so many pages; `next_task` is told whether one is idle."""
        for level in range(IN_FLIGHT):
            for member in self._members:
                if member.start is not None or member.gone or len(member.tasks) != level or member.alone:
                    continue
                task = next_task(level == 0)
                if task is not None:
                    member.tasks[member.actor.encode.remote(task.parts, pages)] = task

    def wait(self, seconds: float) -> Iterator[tuple[Task, TaskResult | Lost]]:
        """Tasks that came back, or are lost; nothing if none did for so long.

        Raises:
            BrokenModelError: a worker cannot load its model, or not run it.
        """
        members = {ref: member for member in self._members for ref in (member.start, *member.tasks) if ref is not None}
        if not members:
            time.sleep(seconds)
            return
        done, _ = self.ray.wait(list(members), num_returns=1, timeout=seconds)
        if done:
            done, _ = self.ray.wait(list(members), num_returns=len(members), timeout=0)
        for ref in done:
            member = members[ref]
            if ref is member.start:
                self._started(member)
                continue
            task = member.tasks.pop(ref)
            outcome = self._result(member, ref)
            if member.gone and not member.tasks:
                self._members.remove(member)
            yield task, outcome

    def _result(self, member: _Member, ref: Any) -> TaskResult | Lost:
        errors = self.ray.exceptions
        try:
            result: TaskResult = self.ray.get(ref)
        except errors.RayTaskError as error:
            _log.warning("%s: %r", member.progress.name, error.cause)
            _log.debug("%s", error)
            return Lost(f"cannot be read by the workers ({error.cause!r})", died=False)
        except errors.RayError as error:
            self._lost(member, error)
            return Lost("ended three workers that read it", died=True)
        if result.broken is not None:
            raise BrokenModelError(result.broken)
        member.progress.pages += sum(len(part.packed.numbers) for part in result.results if part.packed is not None)
        member.progress.seconds = time.monotonic() - member.began
        return result

    def _started(self, member: _Member) -> None:
        try:
            started: WorkerStarted = self.ray.get(member.start)
        except self.ray.exceptions.RayError as error:
            self._failed_starts += 1
            self._lost(member, error)
            self._members.remove(member)
            if self._failed_starts >= FAILED_STARTS:
                last = str(error).strip().splitlines()[-1]
                raise AnchorFoldError(f"workers do not start: {last}") from error
            return
        if started.problem is not None:
            raise BrokenModelError(started.problem)
        self._failed_starts = 0
        member.start, member.began = None, time.monotonic()
        member.progress.name = f"{started.host}:{started.process}"
        self.progress.append(member.progress)
        _log.info("worker %s started", member.progress.name)

    def _lost(self, member: _Member, error: Exception) -> None:
        """A worker is gone; its other tasks come back as lost by themselves."""
        if member.gone:
            return
        member.gone = member.progress.gone = True
        _log.warning("worker %s is gone: %s", member.progress.name or "(starting)", str(error).splitlines()[0])
        self.ray.kill(member.actor)  # it may only be out of reach
        self._supervised = 0.0
