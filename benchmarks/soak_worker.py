"""A process of the soak test that uses an index: commands come and answers go through a pipe.

It may be killed at any moment. While documents are added, every page is told by a message `{"pages": n}`; the answer
to a command is `{"done": ...}` or `{"error": class, "message": text, "clean": ...}`.
"""

from __future__ import annotations

import faulthandler
import os
import random
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from anchorfold.errors import AnchorFoldError
from anchorfold.index import Index, ingest
from benchmarks.soak_pages import COMPRESSOR, MarkReader, read_number, same_vectors

ALL_PAGES = 100_000  # more than any index of the soak test holds
_pipe: Connection  # of this process


def tell(message: dict[str, Any]) -> None:
    _pipe.send(message)


def failure(error: BaseException) -> dict[str, Any]:
    """An error as an answer; `clean` if it is one that a command line prints as a sentence."""
    return {
        "error": type(error).__name__, "message": str(error), "clean": isinstance(error, (AnchorFoldError, OSError)),
        "trace": "".join(traceback.format_exception(error)),
    }  # fmt: skip


@contextmanager
def few_descriptors(further: int | None) -> Iterator[None]:
    """Allow only so many more open files than there are now."""
    if further is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + further, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def stopped_by_signals(graceful: bool) -> Iterator[Callable[[], bool]]:
    """Stop after the current batch, as the command line does; otherwise signals have their usual effect."""
    stop = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM) if graceful else ()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def add(
    index: str, bits: int, paths: list[str], prune: bool = False, seconds: float = 0.0, batch: int = 1,
    commit: int = 32, wait: float = -1, graceful: bool = False, descriptors: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Make the index if need be and bring it up to date; the report."""
    ingest.COMMIT_PAGES = commit
    with few_descriptors(descriptors), stopped_by_signals(graceful) as stop:
        opened = Index.open_or_create(index, MarkReader(seconds), COMPRESSOR, bits=bits)
        report = opened.add(
            paths, prune=prune, stop=stop, batch_size=batch, wait=wait, progress=lambda p: tell({"pages": p.pages})
        )
    return asdict(report)


def remove(index: str, names: list[str]) -> list[str]:
    return Index.open(index, MarkReader()).remove(names)


def search(index: str, queries: list[int], descriptors: int | None = None) -> list[list[list[Any]]]:
    """All pages with their scores, for each query."""
    with few_descriptors(descriptors):
        opened = Index.open(index, MarkReader())
        return [all_hits(opened, query) for query in queries]


def all_hits(index: Index, query: int, exact: bool | None = None) -> list[list[Any]]:
    return [[h.source, h.page, h.score] for h in index.search(f"page {query}", top=ALL_PAGES, exact=exact)]


def read(index: str, queries: list[int], until: str, threads: int, seed: int) -> list[dict[str, Any]]:
    """Search and read pages in some threads until a file appears; what was read."""
    opened = Index.open(index, MarkReader())
    tell({"pages": 0})
    records: list[dict[str, Any]] = []
    readers = [
        threading.Thread(target=read_on, args=(opened, queries, Path(until), random.Random(seed + i), records))
        for i in range(threads)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return records


def read_on(index: Index, queries: list[int], until: Path, rng: random.Random, records: list[dict[str, Any]]) -> None:
    hits: list[list[Any]] = []
    while not until.exists():
        call = rng.choice(["search", "search", "page", "page", "info"])
        record: dict[str, Any] = {"call": call}
        try:
            if call == "search":
                record["query"] = rng.choice(queries)
                record["hits"] = hits = all_hits(index, record["query"], rng.choice([None, True, False]))
            elif call == "info":
                record["documents"] = index.info().documents
            elif hits:
                record["source"], record["page"], _ = rng.choice(hits)
                record["number"] = page_number(index, record["source"], record["page"])
        except BaseException as error:  # a panic of a library is none of Python's exceptions
            record |= failure(error)
        records.append(record)
        time.sleep(rng.uniform(0.0, 0.03))


def page_number(index: Index, source: str, page: int) -> int:
    """The number of a stored page: the one on its picture, which must be the one of its vectors."""
    encoded, row = index.page(source, page)
    number = read_number(Image.open(BytesIO(row["thumbnail"])))
    if not same_vectors(encoded.vectors, number, index.settings.bits):
        raise AssertionError(f"page {page} of {source}: the picture is that of number {number}, the vectors are not")
    return number


def outlive(index: str, moved: str, paths: list[str], query: int) -> list[dict[str, Any]]:
    """Use an open index, again after its folder was moved, and open it anew: the outcome of every call."""
    opened = Index.open(index, MarkReader())
    all_hits(opened, query)
    tell({"pages": 0})
    while not os.path.exists(moved) or os.path.exists(index):
        time.sleep(0.01)
    calls: dict[str, Callable[[], Any]] = {
        "search": lambda: len(all_hits(opened, query)),
        "info": lambda: opened.info().pages,
        "page": lambda: opened.page("*", 1) and None,
        "remove": lambda: opened.remove("*", wait=5) and None,
        "add": lambda: opened.add(paths, wait=5) and None,
        "search at the new place": lambda: len(search(moved, [query])[0]),
    }
    outcomes = []
    for name, call in calls.items():
        try:
            outcomes.append({"call": name, "done": call()})
        except BaseException as error:
            outcomes.append({"call": name, **failure(error)})
    return outcomes


COMMANDS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (add, remove, search, read, outlive)}


def serve(pipe: Connection, log: Path, run: str) -> None:
    """Do what comes through the pipe. The processes that this one starts bear the name of the run."""
    global _pipe  # noqa: PLW0603
    _pipe = pipe
    errors = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    os.close(errors)
    faulthandler.enable()
    os.environ["ANCHORFOLD_SOAK"] = run
    torch.set_num_threads(1)
    while True:
        try:
            command = pipe.recv()
        except EOFError:
            return
        try:
            os.chdir(command.pop("home"))
            answer = {"done": COMMANDS[command.pop("do")](**command)}
        except BaseException as error:
            answer = failure(error)
        tell(answer)
