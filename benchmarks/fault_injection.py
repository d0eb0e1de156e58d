"""Inject a fault at every write, sync, truncation, deletion, rename and creation of a file of an index.

Each case copies an index, starts a long-lived reader process, and runs one operation in a process whose libc calls are
intercepted by `fault_shim.c` (LD_PRELOAD), so that the calls of SQLite are included. After the fault:

- a fresh process and the long-lived reader see the same index, which is the state before or after the interrupted step,
- no acknowledged step is lost,
- `check` reports nothing (after an interrupted repair: another repair succeeds),
- the next writer works.

    python -m benchmarks.fault_injection                 # every call, every action
    python -m benchmarks.fault_injection --sample 80     # some of them
"""

from __future__ import annotations

import argparse
import ctypes
import os
import pickle
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorfold.errors import AnchorFoldError, DamagedError, NotAnIndexError
from anchorfold.retrieval.embedded_store import EmbeddedStore, check_index
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.records import PageText
from anchorfold.storage.segment import segment_path
from benchmarks.small_index import (
    NAMES,
    PAGES,
    add_document,
    create_store,
    digest,
    make_index,
    observe,
    page_word,
    source,
)

ACTIONS = {
    "die before": 1, "die after": 2, "torn write": 3, "ENOSPC once": 4, "ENOSPC": 5, "EIO once": 6, "EIO": 7,
}  # fmt: skip
SECONDS = 600  # timeout of a process
DIED = 77
Step = Callable[[Path], object]


# Operations: named lists of steps, each acknowledged separately.


def _write(function: Callable[[EmbeddedStore], object]) -> Step:
    def step(folder: Path) -> None:
        store = EmbeddedStore.open(folder)
        with store.writing(wait=10):
            function(store)

    return step


def _put_texts(name: str) -> Callable[[EmbeddedStore], None]:
    texts = {page: PageText(f"common {page_word(name, 1, page)} later") for page in range(1, PAGES + 1)}
    return lambda store: store.put_texts(source(name), digest(1), texts, {1: b"thumbnail"})


def _merge(store: EmbeddedStore) -> None:
    store._merge(sorted(store.read(lambda snapshot: snapshot.files)))
    store.finish()


def _add(store: EmbeddedStore) -> None:
    add_document(store, "added")
    store.finish()


def _replace(store: EmbeddedStore) -> None:
    add_document(store, "alpha", 2, pages=4)
    store.finish()


def _remove(store: EmbeddedStore) -> None:
    store.remove([source("bravo"), source("kept")])
    store.finish()


def _metadata(store: EmbeddedStore) -> None:
    values = {source(name): {"year": 2030 + i, "final": True} for i, name in enumerate(NAMES)}
    store.set_metadata(values, {"year": "integer", "final": "boolean"})


OPERATIONS: dict[str, tuple[Step, ...]] = {
    "create": (create_store,),
    "add": (_write(_add),),
    "replace": (_write(_replace),),
    "remove": (_write(_remove),),
    "metadata": (_write(_metadata),),
    "add text": (
        _write(lambda store: store.enable_text(False)),
        *(_write(_put_texts(name)) for name in NAMES[:2]),
        _write(lambda store: store.set_text_complete()),
    ),
    "merge": (_write(_merge),),
    "repair database": (lambda folder: check_index(folder, fix=True),),
    "repair lost database": (lambda folder: check_index(folder, fix=True),),
    "repair vectors": (lambda folder: check_index(folder, fix=True),),
}


def make_template(operation: str, folder: Path) -> None:
    """Create the initial index of an operation."""
    if operation == "create":
        return
    make_index(folder, text=operation != "add text")
    if operation == "repair database":
        with sqlite3.connect(folder / "index.db") as connection:
            connection.execute(
                "UPDATE texts SET checksum = checksum + 1 WHERE page_id = (SELECT min(page_id) FROM texts)"
            )
        connection.close()
    if operation == "repair lost database":
        (folder / "index.db").unlink()
    if operation == "repair vectors":
        path = segment_path(folder, 2)
        data = bytearray(path.read_bytes())
        data[300] ^= 4
        path.write_bytes(data)


# Processes.


class CaseError(Exception):
    """A process of a case failed."""


class Child:
    """Forked process that calls a function with `send` and sends its result."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, talk: bool = False) -> None:
        self.incoming, outgoing = os.pipe()
        theirs, self.outgoing = os.pipe()
        self.process = os.fork()
        if self.process:
            os.close(outgoing)
            os.close(theirs)
            self.file = os.fdopen(self.incoming, "rb")
            return
        code = 1
        with suppress(BrokenPipeError):
            os.close(self.incoming)
            os.close(self.outgoing)
            signal.alarm(SECONDS)
            with os.fdopen(outgoing, "wb") as file:

                def send(value: Any) -> None:
                    pickle.dump(value, file)
                    file.flush()

                def receive() -> bool:
                    return bool(os.read(theirs, 1))

                try:
                    send(function(*arguments, send, receive) if talk else function(*arguments, send))
                    code = 0
                except BaseException as error:
                    send(("exception", "".join(traceback.format_exception(error)[-3:])))
        os._exit(code)

    def read(self) -> Any:
        """Return the next value; raise EOFError at the end."""
        return pickle.load(self.file)

    def go_on(self) -> None:
        os.write(self.outgoing, b".")

    def end(self) -> int:
        """Close the pipes and return the exit status."""
        os.close(self.outgoing)
        self.file.close()
        _, status = os.waitpid(self.process, 0)
        return os.waitstatus_to_exitcode(status)


def look(folder: Path, ignored: tuple[str, ...] = (), store: EmbeddedStore | None = None) -> Any:
    """Return an observation, or the class of the error."""
    try:
        return observe(store or EmbeddedStore.open(folder), ignored)
    except AnchorFoldError as error:
        return _named(error)


def _named(error: Exception) -> str:
    kinds = (DamagedError, NotAnIndexError)
    return next((kind.__name__ for kind in kinds if isinstance(error, kind)), f"{type(error).__name__}: {error}")


def _reader(folder: Path, hold: bool, send: Callable[[Any], None], receive: Callable[[], bool]) -> None:
    store: EmbeddedStore | None = None
    with ExitStack() as stack:
        try:
            store = EmbeddedStore.open(folder)
            send(look(folder, store=store))
            if hold:
                stack.enter_context(store.database.reading()).execute("SELECT * FROM index_info").fetchall()
        except AnchorFoldError as error:
            send(_named(error))
        while receive():
            stack.close()
            try:
                store = store or EmbeddedStore.open(folder)
                send(look(folder, ("next",), store))
            except AnchorFoldError as error:
                send(_named(error))


def _victim(operation: str, folder: Path, call: int, action: int, send: Callable[[Any], None]) -> Any:
    """Run the steps of an operation with a fault; a step that fails is repeated without faults in the same process."""
    shim = ctypes.CDLL(None)
    shim.fault_kinds.restype = ctypes.c_char_p
    shim.fault_arm(str(folder).encode(), ctypes.c_long(call), action)
    for step in OPERATIONS[operation]:
        try:
            step(folder)
        except AnchorFoldError as error:
            shim.fault_disarm()
            send(("error", f"{type(error).__name__}: {error}"))
            if call % 2:
                return ("failed", "")
            step(folder)
        send(("done", step is OPERATIONS[operation][-1]))
    return ("calls", shim.fault_kinds().decode())


def _states(operation: str, folder: Path, send: Callable[[Any], None]) -> list[Any]:
    """Return the observations before the operation and after each step."""
    states = [look(folder)]
    for step in OPERATIONS[operation]:
        step(folder)
        states.append(look(folder))
    return states


def _examine(folder: Path, repair: bool, send: Callable[[Any], None]) -> tuple[Any, Any, Any, Any]:
    """Return the state and damage of an index; with `repair`, also after a repair."""
    fresh = look(folder, ("next",))
    damages = [] if fresh == "NotAnIndexError" else check_index(folder)
    if not repair:
        return fresh, damages, None, None
    check_index(folder, fix=True)
    return fresh, damages, look(folder), check_index(folder)


def _next_writer(folder: Path, send: Callable[[Any], None]) -> tuple[Any, Any, Any]:
    """Return the state of an index before and after adding a document, and its damage."""
    before = look(folder, ("next",))
    store = create_store(folder)
    with store.writing(wait=10):
        add_document(store, "next")
        store.finish()
    damages: list[Any] = list(check_index(folder))
    if store.settings.text and [hit.source for hit in store.search_text(SearchRequest(["nextr1p2"], top_k=5))[0]] != [
        source("next")
    ]:
        damages.append("the document of the next writer is not found")
    return before, look(folder, ("next",)), damages


def fork(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function that runs in another process."""
    child = Child(function, *arguments)
    try:
        result = child.read()
    except EOFError as error:
        raise CaseError("a process died") from error
    finally:
        child.end()
    if isinstance(result, tuple) and result[0] == "exception":
        raise CaseError(result[1])
    return result


@dataclass
class Case:
    """A fault: the operation, the number of the call, and the injected action."""

    operation: str
    call: int
    action: str
    kind: str = ""

    def __str__(self) -> str:
        return f"{self.operation}, call {self.call} ({self.kind}), {self.action}"


class Harness:
    """Templates and reference states of the operations."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.states: dict[str, list[Any]] = {}
        self.kinds: dict[str, str] = {}
        for operation in OPERATIONS:
            fork(lambda _, operation=operation: make_template(operation, self.template(operation)))
            self.states[operation] = fork(_states, operation, self.copy(operation, "states"))
            child = Child(_victim, operation, self.copy(operation, "count"), 0, 0)
            while (message := child.read())[0] != "calls":
                pass
            child.end()
            self.kinds[operation] = message[1]

    def template(self, operation: str) -> Path:
        return self.root / f"template-{operation.replace(' ', '-')}"

    def copy(self, operation: str, name: str) -> Path:
        folder = self.root / name / "my.index"
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.parent.mkdir()
        if self.template(operation).exists():
            shutil.copytree(self.template(operation), folder)
        return folder

    def cases(self) -> Iterator[Case]:
        for operation, kinds in self.kinds.items():
            for action in ACTIONS:
                for call, kind in enumerate(kinds, 1):
                    if (action == "torn write" and kind != "w") or (action.startswith("ENOSPC") and kind == "u"):
                        continue
                    yield Case(operation, call, action, kind)

    def violations(self, case: Case) -> list[str]:
        """Run a case and return the violations."""
        folder = self.copy(case.operation, "case")
        found: list[str] = []
        repairs = case.operation.startswith("repair")
        reader = Child(_reader, folder, case.call % 3 == 0, talk=True)
        reader.read()
        acknowledged, finished = self._run_victim(case, folder, found)
        allowed = self.states[case.operation][acknowledged : acknowledged + 2]
        reader.go_on()
        seen = reader.read()
        fresh, damages, after, left = fork(_examine, folder, repairs and not finished)
        if seen != fresh:
            found.append(f"the reader sees {_short(seen)}, a fresh process {_short(fresh)}")
        unrepaired = repairs and not finished and isinstance(fresh, str)
        if fresh not in allowed and not unrepaired:
            found.append(f"the index is in another state: {_difference(fresh, allowed)}")
        if damages and not (repairs and not finished):
            found.append(f"check reports {damages}")
        if repairs and not finished and after != allowed[-1]:
            found.append(f"another repair: {_difference(after, allowed[-1:])}")
        if left:
            found.append(f"check after another repair reports {left}")
        before, fresh, left = fork(_next_writer, folder)
        reader.go_on()
        seen = reader.read()
        if seen != fresh:
            found.append(f"after the next writer the reader sees {_short(seen)}, a fresh process {_short(fresh)}")
        if fresh != before and case.operation != "create":
            found.append(f"the next writer changed other documents: {_difference(fresh, [before])}")
        if left:
            found.append(f"check after the next writer reports {left}")
        reader.end()
        return found

    @staticmethod
    def _run_victim(case: Case, folder: Path, found: list[str]) -> tuple[int, bool]:
        """Return the number of acknowledged steps, and whether the operation finished."""
        victim = Child(_victim, case.operation, folder, case.call, ACTIONS[case.action])
        acknowledged, finished = 0, False
        while True:
            try:
                kind, detail = victim.read()
            except EOFError:
                break
            if kind == "done":
                acknowledged, finished = acknowledged + 1, detail
            if kind == "exception":
                found.append(detail)
        code = victim.end()
        if code not in (0, DIED):
            found.append(f"the process ended with {code}")
        return acknowledged, finished


def _short(state: Any) -> str:
    return state if isinstance(state, str) else f"{len(state['documents'])} documents"


def _difference(state: Any, allowed: list[Any]) -> str:
    if isinstance(state, str) or any(isinstance(s, str) for s in allowed[:1]):
        return f"{_short(state)} instead of {[_short(s) for s in allowed]}"
    names = [name for name in state if state[name] != allowed[0][name]]
    return f"{names} differ ({_short(state)})"


# The script.


def run(sample: int | None, seed: int, root: Path, operations: list[str]) -> int:
    began = time.monotonic()
    harness = Harness(root)
    cases = [case for case in harness.cases() if case.operation in operations]
    for operation in operations:
        print(f"{operation}: {len(harness.kinds[operation])} calls ({dict(Counter(harness.kinds[operation]))})")
    if sample is not None:
        cases = random.Random(seed).sample(cases, min(sample, len(cases)))
    failed = 0
    for number, case in enumerate(cases, 1):
        try:
            problems = harness.violations(case)
        except (CaseError, EOFError, BrokenPipeError) as error:
            problems = [f"{type(error).__name__}: {error}"]
        failed += bool(problems)
        for problem in problems:
            print(f"VIOLATION {case}: {problem}", flush=True)
        if number % 100 == 0:
            print(f"{number} of {len(cases)} faults, {failed} violations, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{len(cases)} faults, {failed} violations, {time.monotonic() - began:.0f} s")
    return int(failed > 0)


def build_shim(folder: Path) -> Path:
    """Compile the shim."""
    library = folder / "fault_shim.so"
    code = Path(__file__).with_name("fault_shim.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", str(library), str(code), "-ldl"], check=True)
    return library


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sample", type=int, help="Number of faults (default: all).")
    parser.add_argument("--seed", type=int, default=0, help="Seed of the sample.")
    parser.add_argument("--operation", action="append", choices=list(OPERATIONS), help="Only this operation.")
    options = parser.parse_args()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as root:
        if "ANCHORFOLD_FAULT_SHIM" not in os.environ:
            library = build_shim(Path(root))
            environment = {**os.environ, "LD_PRELOAD": str(library), "ANCHORFOLD_FAULT_SHIM": "1"}
            command = [sys.executable, "-m", "benchmarks.fault_injection", *sys.argv[1:]]
            return subprocess.run(command, env=environment, check=False).returncode
        return run(options.sample, options.seed, Path(root), options.operation or list(OPERATIONS))


if __name__ == "__main__":
    sys.exit(main())
