"""Soak test: long-lived writers and readers of one index in several processes and threads, with kills and repairs.

Two writer processes alternate, each with one long-lived object: they add, replace and remove documents, set
metadata, store texts, merge vector files, and run maintenance without a change. Reader processes with two threads each
search (visual, text, filters) and list documents. The main process kills writers, runs `check` and `check --repair`,
and damages the full-text index from time to time, so that a repair rebuilds the database under open readers.

Writers record the start and the end of every operation while they hold the writer lock. Every reader and
writer compares the index with these records: no completed operation may be missing, and a search must return the
pages of the commit that it reads.

    python -m benchmarks.soak --minutes 60
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from ctypes import c_long
from dataclasses import dataclass, field
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

from anchorfold.retrieval.embedded_store import EmbeddedStore, check_index
from anchorfold.retrieval.scan import Scanner
from anchorfold.storage.document_store import stored_pages
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.lock import writer_lock
from anchorfold.storage.records import PageText, Version
from anchorfold.storage.schema import PAGE_BITS
from anchorfold.storage.snapshot import Snapshot
from anchorfold.storage.text_search import best_matches, match_expression
from benchmarks.small_index import add_document, create_store, digest, page_vectors, page_word, source

forks = multiprocessing.get_context("fork")
DOCUMENTS = [f"document{number:02}" for number in range(24)]
WRITERS, READERS, THREADS = 2, 2, 2
ABSENT = -1  # revision of a document that is not in the index
UNSEARCHED = "unsearched"  # the document whose entry in the full-text index is damaged


def pages_of(revision: int) -> int:
    return 1 + revision % 4


def revision_of(stored: str) -> int:
    return int(stored.removeprefix("revision-")) if stored else ABSENT


@dataclass
class Records:
    """Operations on documents that the writers have recorded so far.

    `possible` contains the valid revisions per document: the last completed one, and those started since.
    """

    path: Path
    offset: int = 0
    last: int = 0
    possible: dict[str, list[int]] = field(default_factory=dict)

    def read(self) -> Records:
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            data = file.read()
        complete = data[: data.rfind(b"\n") + 1]
        self.offset += len(complete)
        for line in complete.splitlines():
            kind, name, revision = json.loads(line)
            self.last = max(self.last, revision)
            known = self.possible.setdefault(name, [ABSENT])
            if kind == "begin":
                known.append(revision)
            else:
                known[:] = [revision]
        return self

    def write(self, kind: str, name: str, revision: int) -> None:
        with open(self.path, "ab", buffering=0) as file:
            file.write(json.dumps([kind, name, revision]).encode() + b"\n")

    def snapshot(self) -> dict[str, list[int]]:
        return {name: list(revisions) for name, revisions in self.possible.items()}


class Worker:
    """Base of writers and readers: the folder, counters and recorded violations."""

    def __init__(self, root: Path, slot: int, counts: Any, until: float) -> None:
        self.root, self.slot, self.counts, self.until = root, slot, counts, until
        self.folder = root / "my.index"
        self.records = Records(root / "records.jsonl")

    def violation(self, text: str) -> None:
        report_violation(self.root, text)

    def loop(self, step: Callable[[random.Random], None], seed: int) -> None:
        rng = random.Random(seed)
        while time.time() < self.until:
            try:
                step(rng)
            except Exception:
                self.violation(traceback.format_exc())
            self.counts[self.slot] += 1


def report_violation(root: Path, text: str) -> None:
    with open(root / "violations.txt", "ab", buffering=0) as file:
        file.write(f"{time.strftime('%H:%M:%S')} process {os.getpid()}: {text}\n".encode())


class Writer(Worker):
    """Long-lived object that writes whenever it acquires the lock."""

    def run(self, seed: int) -> None:
        self.store = EmbeddedStore.open(self.folder)
        self.loop(self.step, seed)

    def step(self, rng: random.Random) -> None:
        with self.store.writing(wait=900):  # longer than the processes may be paused
            self.resolve()
            if rng.random() < 0.7:
                self.change_document(rng)
            else:
                self.maintain(rng)
        time.sleep(rng.uniform(0, 0.05))

    def resolve(self) -> None:
        """Compare the index with the records, and record the outcome of a killed operation."""
        states = self.store.documents()
        for name, revisions in self.records.read().snapshot().items():
            state = states.get(source(name))
            now = ABSENT if state is None else revision_of(state.digest)
            if now not in revisions:
                self.violation(f"{name} has revision {now} instead of {revisions}")
            if len(revisions) > 1 or now not in revisions:
                self.records.write("done", name, now)
        self.records.read()

    def change_document(self, rng: random.Random) -> None:
        name, revision = rng.choice(DOCUMENTS), self.records.last + 1
        present = self.records.possible.get(name, [ABSENT]) != [ABSENT]
        if present and rng.random() < 0.25:
            revision = ABSENT
        self.records.write("begin", name, revision)
        if revision == ABSENT:
            self.store.remove([source(name)])
        else:
            add_document(self.store, name, revision, pages_of(revision))
        if rng.random() < 0.5:
            self.store.finish()
        self.records.write("done", name, revision)

    def maintain(self, rng: random.Random) -> None:
        present = [name for name, revisions in self.records.possible.items() if revisions[0] != ABSENT]
        match rng.randrange(5):
            case 0:
                self.store.finish()  # an `add` with nothing to add
            case 1:
                self.store._merge(sorted(self.store.read(lambda snapshot: snapshot.files)))
            case 2 if present:
                name = rng.choice(present)
                self.store.set_metadata({source(name): {"year": rng.randrange(2000, 2030)}}, {"year": "integer"})
            case 3 if present:
                name = rng.choice(present)
                (revision,) = self.records.possible[name]
                text = PageText(f"common {page_word(name, revision, 1)} again")
                self.store.put_texts(source(name), digest(revision), {1: text}, {1: rng.randbytes(200)})
            case _:
                self.store.drop_staged([source(name) for name in DOCUMENTS])


class Reader(Worker):
    """Long-lived object that several threads search."""

    def run(self, seed: int) -> None:
        self.store = EmbeddedStore.open(self.folder)
        threads = [threading.Thread(target=self.thread, args=(seed * 100 + n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def thread(self, seed: int) -> None:
        """Search in a loop; each thread has its own records."""
        reader = Reader(self.root, self.slot, self.counts, self.until)
        reader.store, reader.newest = self.store, None
        reader.loop(reader.step, seed)

    newest: Version | None = None

    def step(self, rng: random.Random) -> None:
        rng.choice([self.one_commit, self.one_commit, self.acknowledged, self.public])(rng)
        time.sleep(rng.uniform(0, 0.01))

    def one_commit(self, rng: random.Random) -> None:
        """Check that documents, visual search and text search of one commit agree."""

        def look(snapshot: Snapshot, scanner: Scanner) -> None:
            if self.newest is not None and snapshot.version.commits < self.newest.commits:
                self.violation(f"the commit went back from {self.newest} to {snapshot.version}")
            self.newest = snapshot.version
            live = {v.name.removesuffix(".pdf"): v for v in snapshot.versions("v.live")}
            live.pop(UNSEARCHED, None)
            if not live:
                return
            name = rng.choice(sorted(live))
            version = live[name]
            revision, page = revision_of(version.digest), rng.randint(1, version.pages)
            ((best, *_),) = scanner.top_k([page_vectors(name, revision, page)], 1, exact=rng.random() < 0.5)
            (found,) = scanner.live.identities(_array([best[0]])).tolist()
            if found != version.id << PAGE_BITS | page:
                self.violation(f"visual search for {name} revision {revision} page {page} finds page id {found}")
            matches = best_matches(snapshot, match_expression(page_word(name, revision, page)), 5)
            if [identity for identity, _ in matches] != [version.id << PAGE_BITS | page]:
                self.violation(f"text search for {name} revision {revision} page {page} finds {matches}")
            stored = stored_pages(snapshot, [version.source])[version.source][version.digest]
            if stored != set(range(1, version.pages + 1)):
                self.violation(f"{name} revision {revision} has pages {stored} of {version.pages}")

        self.store.pages.with_scanner(look)

    def acknowledged(self, rng: random.Random) -> None:
        """Check that operations completed before the search are visible, unless another one has started."""
        before = self.records.read().snapshot()
        states = self.store.documents()
        after = self.records.read()
        begun = {name: set(revisions) for name, revisions in after.snapshot().items()}
        for name, revisions in before.items():
            state = states.get(source(name))
            now = ABSENT if state is None else revision_of(state.digest)
            # Operations between the two reads of the records may be complete: any revision up to the newest.
            newer = begun[name] != set(revisions) and (now == ABSENT or max(revisions) < now <= after.last)
            if now not in revisions and now not in begun[name] and not newer:
                self.violation(f"{name} has revision {now}; acknowledged: {revisions}, later {begun[name]}")

    def public(self, rng: random.Random) -> None:
        self.store.refresh()
        name = rng.choice(DOCUMENTS)
        query = [page_vectors(name, self.records.last, 1)]
        match rng.randrange(4):
            case 0:
                hits = self.store.search_visual(SearchRequest(vectors=query, top_k=10))[0]
            case 1:
                hits = self.store.search_text(SearchRequest(["common"], top_k=10))[0]
            case 2:
                hits = self.store.search_visual(SearchRequest(vectors=query, top_k=10, where="year >= 2010"))[0]
                if any(int(str(hit.metadata.get("year", 2010))) < 2010 for hit in hits):
                    self.violation("a filtered search returned another document")
            case _:
                hits = self.store.search_text(SearchRequest(["common"], top_k=10, where="pages >= 2 and year < 2015"))[
                    0
                ]
                if any(int(str(hit.metadata["pages"])) < 2 for hit in hits):
                    self.violation("a filtered text search returned another document")
        if len({(hit.source, hit.page) for hit in hits}) != len(hits):
            self.violation("a search returned a page twice")


def _array(values: list[int]) -> Any:
    import numpy as np

    return np.array(values, np.int64)


# The main process never opens the index, because it forks.


def check_clean(root: Path, repair: bool) -> None:
    try:
        if damages := check_index(root / "my.index", fix=repair):
            report_violation(root, f"{'repair' if repair else 'check'} reports {damages}")
    except Exception:
        report_violation(root, traceback.format_exc())


def damage_and_repair(root: Path) -> None:
    """Remove an entry of the full-text index and repair, which rebuilds the database."""
    folder = root / "my.index"
    try:
        with writer_lock(folder, 900), closing(sqlite3.connect(folder / "index.db", timeout=60)) as connection:
            query = "SELECT page_id, text FROM texts JOIN versions v ON v.id = page_id >> 24 JOIN documents d ON d.id = v.document_id WHERE d.path = ? LIMIT 1"  # noqa: E501
            row = connection.execute(query, (source(UNSEARCHED),)).fetchone()
            connection.execute("INSERT INTO text_index (text_index, rowid, text) VALUES ('delete', ?, ?)", row)
            connection.commit()
        damages = check_index(folder, fix=True)
        if not any("rebuilt" in damage.problem for damage in damages):
            report_violation(root, f"repair did not rebuild the database: {damages}")
        if any("restored" in damage.problem for damage in damages):
            report_violation(root, f"repair restored documents: {damages}")
    except Exception:
        report_violation(root, traceback.format_exc())


def create(root: Path) -> None:
    store = create_store(root / "my.index")
    with store.writing():
        add_document(store, UNSEARCHED)
        store.set_metadata({source(UNSEARCHED): {"year": 2020}}, {"year": "integer"})


def in_process(function: Callable[..., None], *arguments: Any) -> None:
    process = forks.Process(target=function, args=arguments)
    process.start()
    process.join()


def soak(root: Path, minutes: float, seed: int) -> int:
    rng, until = random.Random(seed), time.time() + 60 * minutes
    (root / "records.jsonl").touch()
    in_process(create, root)
    counts = RawArray(c_long, WRITERS + READERS)

    def start(slot: int) -> Any:
        kind = Writer if slot < WRITERS else Reader
        worker = kind(root, slot, counts, until)
        process = forks.Process(target=worker.run, args=(rng.randrange(1 << 30),))
        process.start()
        return process

    processes = {slot: start(slot) for slot in range(WRITERS + READERS)}
    kills = checks = repairs = rebuilds = 0
    began = reported = time.time()
    while time.time() < until:
        if time.time() - reported > 60:
            reported = time.time()
            failures = len(list((root / "violations.txt").open())) if (root / "violations.txt").exists() else 0
            minutes_run = (reported - began) / 60
            print(f"{minutes_run:.0f} minutes: {sum(counts)} operations, {failures} lines of violations", flush=True)
        time.sleep(rng.uniform(0.5, 3))
        match rng.randrange(6):
            case 0 | 1 | 2:
                slot = rng.randrange(WRITERS)
                processes[slot].kill()
                processes[slot].join()
                processes[slot] = start(slot)
                kills += 1
            case 3:
                in_process(check_clean, root, False)
                checks += 1
            case 4:
                in_process(check_clean, root, True)
                repairs += 1
            case 5 if rng.random() < 0.4:
                in_process(damage_and_repair, root)
                rebuilds += 1
        for slot, process in processes.items():
            if process.exitcode is not None and time.time() < until:
                report_violation(root, f"process {slot} ended with {process.exitcode}")
                processes[slot] = start(slot)
    for process in processes.values():
        process.join(180)
        if process.exitcode is None:
            report_violation(root, "a process hangs")
            process.kill()
    in_process(check_clean, root, False)
    path = root / "violations.txt"
    violations = path.read_text() if path.exists() else ""
    print(violations, end="")
    print(
        f"writes {sum(counts[:WRITERS])}, reads {sum(counts[WRITERS:])}, kills {kills}, checks {checks}, "
        f"repairs {repairs}, rebuilds {rebuilds}"
    )
    count = sum(" process " in line for line in violations.splitlines())
    print(f"{sum(counts) + kills + checks + repairs + rebuilds} operations, {count} violations")
    return int(count > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60, help="Duration.")
    parser.add_argument("--seed", type=int, default=0, help="Seed.")
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="anchorfold-soak-"))
    code = soak(root, options.minutes, options.seed)
    if code:
        print(f"the index is in {root}")
    else:
        shutil.rmtree(root)
    return code


if __name__ == "__main__":
    sys.exit(main())
