"""What the soak test does to an index: every action is a method, and notes what it did in words."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from benchmarks.soak_checks import Violation, check_hits, check_record, check_skipped, judge
from benchmarks.soak_process import Worker, ballast
from benchmarks.soak_world import ROOT, World

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM)


class Actions:
    """An index on a disk of its own, the documents that it is made of, and the processes that use it."""

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
        worker.send("add", self.world.home, index=str(self.index), dtype=self.dtype, **drawn)

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
                self.check_records(self.judge_reader(reader.answer(), troubles), troubles)

    def judge_reader(self, answer: dict[str, Any], troubles: Iterable[str]) -> list[dict[str, Any]]:
        self.violations += judge("reader", answer, troubles)
        return answer.get("done", [])

    def check_records(self, records: list[dict[str, Any]], troubles: Iterable[str]) -> None:
        for record in records:
            self.counts[f"calls of {record['call']} while others wrote"] += 1
            self.violations += check_record(record, self.world, self.dtype, troubles)

    # Actions.

    def new_index(self) -> None:
        """Go on with an index that is not made yet."""
        self.indexes += 1
        self.index = self.disk / f"{self.indexes}.index"
        self.dtype = self.rng.choice(["float16", "float16", "float32", "int8"])
        self.complete = False  # whether it was made and checked
        self.world.start_round({})

    def start_anew(self) -> None:
        """Another index; perhaps its first documents are none that can be read."""
        shutil.rmtree(self.index, ignore_errors=True)
        self.new_index()
        self.note(f"a new index {self.index.name} of {self.dtype}")
        unreadable = sorted(n for n, v in self.world.files.items() if not v.readable and not self.world.is_locked(n))
        if unreadable:
            self.send_add(self.writer(), paths=unreadable)
            self.judge("add", self.writers[0].answer())

    def change_some(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            self.change()

    def add(self) -> None:
        """Add documents that change meanwhile."""
        worker = self.writer()
        with self.reading():
            self.send_add(worker)
            for _ in range(self.rng.randint(0, 4)):
                self.wait_a_moment(worker)
                self.change()
            self.judge("add", worker.answer())

    def add_cut_short(self) -> None:
        """A signal at a random moment of an add."""
        worker, number = self.writer(), self.rng.choice(SIGNALS)
        for _ in range(self.rng.randint(0, 3)):
            self.change()
        with self.reading():
            self.send_add(worker, graceful=number != signal.SIGKILL and self.rng.random() < 0.5)
            for _ in range(self.rng.randint(0, 2)):
                self.wait_a_moment(worker)
                self.change()
            self.wait_a_moment(worker)
            self.note(f"{number.name} after {worker.progress} progress lines")
            self.counts[number.name] += 1
            worker.signal(number)
            self.judge("add", worker.answer(), ["interrupted"], [number])
            worker.end()

    def search_cut_short(self) -> None:
        """A search that has to build the search cache first, killed."""
        worker = self.writer()
        shutil.rmtree(self.index / "cache", ignore_errors=True)
        worker.send("search", self.world.home, index=str(self.index), queries=self.queries())
        worker.wait_for(1, self.rng.uniform(0, 0.1))
        self.note("search without a cache, killed")
        self.counts["SIGKILL"] += 1
        worker.signal(signal.SIGKILL)
        self.judge("search", worker.answer(), signals=[signal.SIGKILL])
        worker.end()

    def two_writers(self) -> None:
        """Two adds at once, of which one may not want to wait."""
        first, second = self.writer(0), self.writer(1)
        impatient = self.rng.random() < 0.3
        with self.reading():
            self.send_add(first)
            self.wait_a_moment(first)
            self.send_add(second, wait=0 if impatient else -1)
            self.change()
            self.judge("add", first.answer(), ["writer"] if impatient else [])
            self.judge("add", second.answer(), ["writer"] if impatient else [])

    def remove(self) -> None:
        """Remove documents by name, folder or pattern, perhaps while others are added."""
        names = sorted(self.world.files) or [f"{ROOT}/none"]
        wanted = self.rng.choice([self.rng.choice(names), self.world.source(self.rng.choice(names)), f"{ROOT}/a", "*.png", "*[37].pdf"])  # fmt: skip  # noqa: E501
        self.world.removed_from_index(wanted)
        with self.reading():
            together = self.rng.random() < 0.5
            if together:
                self.send_add(self.writer(0))
                self.wait_a_moment(self.writers[0])
            self.note(f"remove {wanted!r} from the index")
            worker = self.writer(1)
            worker.send("remove", self.world.home, index=str(self.index), names=[wanted])
            self.judge("remove", worker.answer(), ["nothing to remove"])
            if together:
                self.judge("add", self.writers[0].answer())

    def full_disk(self) -> None:
        """The disk fills up while documents are added or a search builds its cache; then there is space again."""
        worker, leave = self.writer(), int(10 ** self.rng.uniform(3.5, 6.5))
        adding = not self.complete or self.rng.random() < 0.6
        if adding:
            for _ in range(3):
                self.note(self.world.new_file(self.rng))
        else:
            shutil.rmtree(self.index / "cache", ignore_errors=True)
        with ballast(self.disk, leave), self.reading(["full disk"]) if adding else nullcontext():
            self.note(f"a disk with {leave} bytes left")
            self.counts["full disks"] += 1
            if adding:
                self.send_add(worker, paths=[ROOT])
                self.judge("add", worker.answer(), ["full disk"])
            else:
                self.search(worker, ["full disk"])

    def few_descriptors(self) -> None:
        """A process that may open few more files."""
        worker, further = self.writer(), self.rng.randint(0, 25)
        self.note(f"a process that may open {further} more files")
        self.counts["processes with few descriptors"] += 1
        if not self.complete or self.rng.random() < 0.6:
            self.change()
            self.send_add(worker, descriptors=further, paths=[ROOT])
            self.judge("add", worker.answer(), ["descriptors"])
        else:
            if self.rng.random() < 0.5:
                shutil.rmtree(self.index / "cache", ignore_errors=True)
            self.search(worker, ["descriptors"], descriptors=further)
        worker.end()  # modules that it could not import will never work in it again

    def search(self, worker: Worker, troubles: Iterable[str] = (), **options: Any) -> None:
        """Search in a process of its own; the answer is checked."""
        queries = self.queries()
        worker.send("search", self.world.home, index=str(self.index), queries=queries, **options)
        answers = self.judge("search", worker.answer(), troubles)
        for query, hits in zip(queries, answers or [], strict=False):
            self.violations += check_hits(query, hits, self.world, self.dtype)

    def search_only_readable(self) -> None:
        """Search in an index that may not be written, with and without a search cache."""
        if self.rng.random() < 0.5:
            shutil.rmtree(self.index / "cache", ignore_errors=True)
        self.note("search in an index that may only be read")
        folders = [Path(at) for at, _, _ in os.walk(self.index)]
        for folder in folders:
            folder.chmod(0o555)
        try:
            self.search(self.writer())
        finally:
            for folder in folders:
                folder.chmod(0o755)

    def move_index(self) -> None:
        """Move the index while a process has it open."""
        worker = self.writer()
        self.indexes += 1
        moved = self.disk / f"{self.indexes}.index"
        query = self.queries()[0]
        worker.send("outlive", self.world.home, index=str(self.index), moved=str(moved), paths=[ROOT], query=query)
        worker.wait_for(1, 60)
        self.note(f"move {self.index.name} to {moved.name}, which a process has open")
        self.counts["moves"] += 1
        self.index.rename(moved)
        old, self.index = self.index, moved
        for outcome in self.judge("outlive", worker.answer()) or []:
            name = f"{outcome['call']} after the index was moved"
            self.judge(name, outcome, [] if "new" in name else ["moved"])
        if old.exists():
            self.violations.append(Violation("the folder that was moved away is made again", str(old)))
            shutil.rmtree(old)

    def move_home(self) -> None:
        """Move the documents; their names stay."""
        self.counts["moves"] += 1
        self.note(self.world.move_home())

    def draw(self) -> None:
        """Do one action."""
        weights = {
            self.change_some: 4,
            self.add: 6,
            self.add_cut_short: 8,
            self.two_writers: 2,
            self.few_descriptors: 3,
        }
        if self.can_fill:
            weights[self.full_disk] = 4
        if self.complete:
            weights |= {self.search_cut_short: 1, self.remove: 2, self.search_only_readable: 1, self.move_index: 1, self.move_home: 1}  # fmt: skip  # noqa: E501
        self.rng.choices(list(weights), list(weights.values()))[0]()
