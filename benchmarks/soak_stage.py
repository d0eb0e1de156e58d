"""An index on a disk of its own, the documents that it is made of, and the processes that use it."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.soak_checks import Violation, check_record, check_skipped, judge
from benchmarks.soak_process import Worker
from benchmarks.soak_world import ROOT, World


class Stage:
    """What actions work on, and what they noted: `log` in words, `violations`, and `counts` for the summary."""

    def __init__(self, folder: Path, disk: Path, can_fill: bool, rng: random.Random) -> None:
        self.folder, self.disk, self.can_fill, self.rng = folder, disk, can_fill, rng
        self.run = f"{os.getpid()}-{folder.name}"
        (folder / "logs").mkdir()
        self.world = World(folder)
        self.indexes = self.logs = 0
        self.new_index()
        self.log: list[str] = []
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        self.spare = self.start()
        self.writers, self.readers = [self.start() for _ in range(2)], [self.start() for _ in range(2)]

    # Processes.

    def start(self) -> Worker:
        self.logs += 1
        return Worker(self.run, self.folder / "logs" / f"worker-{self.logs}.txt")

    @property
    def workers(self) -> list[Worker]:
        return [*self.writers, *self.readers, self.spare]

    def ready(self, group: list[Worker], number: int) -> Worker:
        """A worker of a group, a new one if it has ended."""
        if not group[number].alive:
            group[number], self.spare = self.spare, self.start()
        return group[number]

    def writer(self, number: int = 0) -> Worker:
        return self.ready(self.writers, number)

    def end(self) -> None:
        for worker in self.workers:
            worker.end()

    def new_index(self) -> None:
        """Go on with an index that is not made yet."""
        self.indexes += 1
        self.index = self.disk / f"{self.indexes}.index"
        self.bits = self.rng.choice([16, 16, 32, 8])
        self.complete = False  # whether it was made and checked
        self.world.start_round({})

    # What every action does.

    def note(self, text: str) -> None:
        self.log.append(text)

    def judge(self, what: str, answer: dict[str, Any], troubles: Iterable[str] = (), signals: Iterable[int] = ()) -> Any:  # fmt: skip  # noqa: E501
        """Note how a command ended and whether it may; what it returned, or None."""
        troubles = list(troubles) + (["unmade"] if not self.complete and "add" not in what else [])
        self.violations += judge(what, answer, troubles, signals)
        outcome = answer.get("done", answer.get("message") or answer.get("error", answer.get("ended", "late")))
        if isinstance(outcome, dict):
            outcome = {k: v for k, v in outcome.items() if v and "seconds" not in k and "vectors" not in k}
        self.note(f"... {what}: {outcome}"[:300])
        if what == "add" and "done" in answer:
            self.violations += check_skipped(answer["done"], self.world, troubles)
        return answer.get("done")

    def queries(self) -> list[int]:
        """Numbers to ask for: of pages on the disk, and one that is on none."""
        numbers = [n for v in self.world.files.values() for n in v.numbers]
        return [*self.rng.sample(numbers, min(4, len(numbers))), 0]

    def send_add(self, worker: Worker, **options: Any) -> None:
        rng = self.rng
        drawn = {
            "paths": rng.choice([[ROOT], [ROOT], [f"{ROOT}/a", f"{ROOT}/b"], sorted(self.world.files)[:5] or [ROOT]]),
            "prune": rng.random() < 0.3, "seconds": rng.choice([0.0, 0.005, 0.02]), "batch": rng.choice([1, 1, 4]),
            "commit": rng.choice([1, 3, 8, 32]),
        }  # fmt: skip
        drawn |= options
        self.note(f"add {drawn}")
        self.counts["adds"] += 1
        worker.send("add", self.world.home, index=str(self.index), bits=self.bits, **drawn)

    def wait_a_moment(self, worker: Worker) -> None:
        worker.wait_for(self.rng.choice([1, 2, 5, 10, 30]), self.rng.uniform(0, 1.0))

    def change(self) -> None:
        self.counts["changes of files"] += 1
        self.note(self.world.change(self.rng))

    @contextmanager
    def reading(self, troubles: Iterable[str] = ()) -> Iterator[None]:
        """Readers at work meanwhile, most times; all that they read is checked afterwards."""
        if not self.complete or self.rng.random() < 0.3:
            yield
            return
        until = self.folder / "until"
        until.unlink(missing_ok=True)
        active = [self.ready(self.readers, i) for i in range(len(self.readers))]
        for reader in active:
            options = {"threads": self.rng.randint(1, 3), "seed": self.rng.randrange(10**6), "until": str(until)}
            reader.send("read", self.world.home, index=str(self.index), queries=self.queries(), **options)
            reader.wait_for(1, 60)
        try:
            yield
        finally:
            until.touch()
            for reader in active:
                self.check_reader(reader.answer(), list(troubles))

    def check_reader(self, answer: dict[str, Any], troubles: list[str]) -> None:
        self.violations += judge("reader", answer, troubles)
        records = answer.get("done", [])
        self.note(f"... a reader made {len(records)} calls meanwhile")
        for record in records:
            self.counts[f"calls of {record['call']} while others wrote"] += 1
            self.violations += check_record(record, self.world, self.bits, troubles)
