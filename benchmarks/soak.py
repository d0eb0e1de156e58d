"""A soak test of the index: documents change, processes are killed, disks are full, and every page must stay right.

    python -m benchmarks.soak --minutes 10
    python -m benchmarks.soak --minutes 60 --seed 7 --folder /tmp/soak --json
    python -m benchmarks.soak --rounds 3 --seed 1             # short enough for a test

A round draws some actions (see `soak_actions.py`), then adds all documents once more, and compares every stored page
with its file. The encoder is a stand-in that reads a number from the pixels of a page, so that the vectors of any
page of any version of a file are known. Processes are real. Needs Linux; the index lies on a small file system of its
own if one can be mounted (as root), else full disks are left out. The exit code is 1 if anything was not as it must
be: then the folder is kept.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.soak_actions import Actions
from benchmarks.soak_checks import Violation, check_folder, check_table, snapshot
from benchmarks.soak_process import be_like_anybody, left_processes, small_disk
from benchmarks.soak_world import ROOT

DISK_BYTES = 256 << 20
GROWTH, DESCRIPTORS = 150.0, 100  # megabytes that a process may gain, and files that it may have open
SHOWN = 2  # violations of a kind that are shown in full
MOST_COPIES = 5  # rounds with violations whose index is copied


@dataclass
class Summary:
    """What was done and seen. `violations` counts them by kind."""

    seed: int
    rounds: int = 0
    seconds: float = 0.0
    full_disks: bool = True
    pages_checked: int = 0
    most_memory: float = 0.0  # megabytes of a worker
    most_descriptors: int = 0
    actions: dict[str, int] = field(default_factory=dict)
    violations: dict[str, int] = field(default_factory=dict)


class Soak:
    """Rounds of actions and checks."""

    def __init__(self, folder: Path, disk: Path, can_fill: bool, seed: int, say: Callable[[str], None]) -> None:
        self.folder, self.seed, self.say = folder, seed, say
        self.actions = Actions(folder, disk, can_fill, random.Random(seed))
        self.summary = Summary(seed, full_disks=can_fill)
        self.reported: set[Violation] = set()
        for _ in range(8):
            self.actions.world.new_file(self.actions.rng)

    def round(self) -> None:
        """Some actions, then everything is checked."""
        actions, rng = self.actions, self.actions.rng
        actions.log, actions.violations = [], []
        self.summary.rounds += 1
        if rng.random() < 0.15:
            actions.start_anew()
        for _ in range(rng.randint(2, 5)):
            actions.draw()
        sound = self.settle()
        if any(v not in self.reported for v in actions.violations):
            self.report()
            self.keep()
        if not sound:  # wrong pages stay wrong: what comes next would show them again
            shutil.rmtree(actions.index, ignore_errors=True)
            actions.new_index()

    def settle(self) -> bool:
        """Add everything, twice, and check all that must hold then; whether the table is right."""
        actions, world, index = self.actions, self.actions.world, self.actions.index
        for again in (False, True):
            before = snapshot(index) if again else {}
            actions.send_add(actions.writer(), paths=[ROOT], prune=True, seconds=0.0)
            report = actions.judge("last add", actions.writers[0].answer())
            if report is None:
                return False
            skipped = {name for name, _ in report["skipped"]}
            if skipped != world.skipped() or report["missing"]:
                self.violate("last add skipped or missed something", f"{skipped}, not {world.skipped()}; {report}")
            if again:
                if report["unchanged"] != len(world.readable()) or report["pages"] or report["removed"]:
                    self.violate("a second add found something changed", str(report))
                if (after := snapshot(index)) != before:
                    self.violate("a second add wrote something", str(sorted(set(after.items()) ^ set(before.items()))))
        violations, versions, pages = check_table(index, world, actions.bits)
        actions.violations += violations
        self.summary.pages_checked += pages
        self.check_processes()
        if violations:
            return False
        actions.complete = True
        world.start_round(versions)
        for reader in (actions.ready(actions.readers, i) for i in range(len(actions.readers))):
            actions.search(reader)
        actions.violations += check_folder(index, versions)
        return True

    def check_processes(self) -> None:
        """No process is left over, and those that live long do not grow."""
        for worker in self.actions.workers:
            if not worker.alive:
                continue
            worker.rounds += 1
            memory, descriptors = worker.memory(), worker.descriptors()
            self.summary.most_memory = max(self.summary.most_memory, memory)
            self.summary.most_descriptors = max(self.summary.most_descriptors, descriptors)
            if worker.rounds == 3:
                worker.least_memory = memory
            elif worker.rounds > 3 and memory > worker.least_memory + GROWTH:
                self.violate("a process grows", f"from {worker.least_memory:.0f} to {memory:.0f} MB in {worker.rounds} rounds")  # fmt: skip  # noqa: E501
            if descriptors > DESCRIPTORS:
                self.violate("a process leaves files open", f"{descriptors} after {worker.rounds} rounds")
        for command in left_processes(self.actions.run):
            self.violate("a process is left over", command)

    def violate(self, kind: str, detail: str) -> None:
        self.actions.violations.append(Violation(kind, detail))

    def report(self) -> None:
        """Show what is new; the actions too if its kind is."""
        new = [v for v in dict.fromkeys(self.actions.violations) if v not in self.reported]
        self.reported.update(new)
        shown = False
        for violation in new:
            count = self.summary.violations.get(violation.kind, 0) + 1
            self.summary.violations[violation.kind] = count
            if count <= SHOWN:
                shown = True
                self.say(
                    f"VIOLATION (seed {self.seed}, round {self.summary.rounds}): {violation.kind}\n  {violation.detail}"
                )
        if shown:
            self.say(f"  after the actions of round {self.summary.rounds}:")
            self.say("\n".join(f"    {i}. {line}" for i, line in enumerate(self.actions.log, 1)))

    def keep(self) -> None:
        """Keep a copy of the index and the documents of a round that went wrong."""
        target = self.folder / "violations" / f"round-{self.summary.rounds}"
        if len(list(target.parent.glob("*"))) < MOST_COPIES:
            self.actions.world.copy_to(target / "home")
            if self.actions.index.exists():
                shutil.copytree(self.actions.index, target / "index")


def soak(
    folder: Path,
    seed: int,
    minutes: float = 0.0,
    rounds: int = 0,
    say: Callable[[str], None] = print,
) -> Summary:
    """Rounds for so many minutes, and at least so many rounds, in an empty folder; three are enough for a test.

    Programs that this process starts later are held to the permissions of files, even if it is root's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    be_like_anybody()
    with small_disk(folder / "disk", DISK_BYTES) as mounted:
        run = Soak(folder, folder / "disk", mounted, seed, say)
        try:
            while run.summary.rounds < rounds or time.monotonic() - began < 60 * minutes:
                run.round()
                say(f"round {run.summary.rounds}: {run.summary.pages_checked} pages checked, {sum(run.summary.violations.values())} violations")  # fmt: skip  # noqa: E501
        except KeyboardInterrupt:
            say("interrupted")
        finally:
            run.actions.end()
    run.summary.actions, run.summary.seconds = dict(run.actions.counts), time.monotonic() - began
    return run.summary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="default: 10, or none if rounds are given")
    parser.add_argument("--rounds", type=int, default=0, help="at least so many")
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, which is shown")
    parser.add_argument("--folder", type=Path, help="scratch; a new folder is made in it")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    arguments = parser.parse_args()
    minutes = (0.0 if arguments.rounds else 10.0) if arguments.minutes is None else arguments.minutes
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    if arguments.folder is not None:
        arguments.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"soak-{seed}-", dir=arguments.folder))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the disk is unmounted, and the summary printed
    summary = soak(folder, seed, minutes, arguments.rounds, lambda text: print(text, file=sys.stderr, flush=True))
    if arguments.json:
        print(json.dumps(asdict(summary), indent=2))
    else:
        print(f"seed {seed}: {summary.rounds} rounds in {summary.seconds / 60:.1f} minutes, {summary.pages_checked} pages compared with their files")  # fmt: skip  # noqa: E501
        print("did: " + ", ".join(f"{count} {name}" for name, count in sorted(summary.actions.items())))
        print(f"at most {summary.most_memory:.0f} MB and {summary.most_descriptors} open files a process; full disks {'tried' if summary.full_disks else 'left out: no file system could be mounted'}")  # fmt: skip  # noqa: E501
        for kind, count in sorted(summary.violations.items(), key=lambda item: -item[1]):
            print(f"VIOLATION x{count}: {kind}")
    if summary.violations:
        print(f"kept: {folder}", file=sys.stderr)
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
