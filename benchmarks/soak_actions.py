"""What the soak test does to an index: every action is a method, and notes what it did in words."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks.soak_checks import Violation, check_hits
from benchmarks.soak_process import Worker, ballast
from benchmarks.soak_stage import Stage
from benchmarks.soak_world import ROOT

SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGTERM)


class Actions(Stage):
    """One method an action; `draw` does one of them."""

    def start_anew(self) -> None:
        """Another index; perhaps its first documents are none that can be read."""
        shutil.rmtree(self.index, ignore_errors=True)
        self.new_index()
        self.note(f"a new index {self.index.name} of {self.bits} bits")
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
        """A search, killed."""
        worker = self.writer()
        worker.send("search", self.world.home, index=str(self.index), queries=self.queries())
        worker.wait_for(1, self.rng.uniform(0, 0.1))
        self.note("search, killed")
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
        pattern = self.rng.choice([self.rng.choice(names), self.world.source(self.rng.choice(names)), f"{ROOT}/a", "*.png", "*[37].pdf"])  # fmt: skip  # noqa: E501
        self.world.removed_from_index(pattern)
        with self.reading():
            together = self.rng.random() < 0.5
            if together:
                self.send_add(self.writer(0))
                self.wait_a_moment(self.writers[0])
            self.note(f"remove {pattern!r} from the index")
            worker = self.writer(1)
            worker.send("remove", self.world.home, index=str(self.index), names=[pattern])
            self.judge("remove", worker.answer(), ["nothing to remove"])
            if together:
                self.judge("add", self.writers[0].answer())

    def full_disk(self) -> None:
        """The disk is full while documents are added or somebody searches; then there is space again."""
        worker, leave = self.writer(), int(10 ** self.rng.uniform(3.5, 6.5))
        adding = not self.complete or self.rng.random() < 0.6
        if adding:
            for _ in range(3):
                self.note(self.world.new_file(self.rng))
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
            self.search(worker, ["descriptors"], descriptors=further)
        worker.end()  # modules that it could not import will never work in it again

    def search(self, worker: Worker, troubles: Iterable[str] = (), **options: Any) -> None:
        """Search in a process of its own; the answer is checked."""
        queries = self.queries()
        worker.send("search", self.world.home, index=str(self.index), queries=queries, **options)
        answers = self.judge("search", worker.answer(), troubles)
        for query, hits in zip(queries, answers or [], strict=False):
            self.violations += check_hits(query, hits, self.world, self.bits)

    def search_only_readable(self) -> None:
        """Search in an index that may not be written."""
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
