"""The measurements of `benchmarks/store.py` with version 0.2, for comparison. Runs in a work tree of commit 5ca6368.

git worktree add /tmp/old 5ca6368
cp benchmarks/store_02.py /tmp/old/benchmarks
cd /tmp/old && PYTHONPATH=src python -m benchmarks.store_02 build old.index --pages 1000000 --vectors 10
PYTHONPATH=src python -m benchmarks.store_02 measure old.index
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import invented_index

DIM = 128


def build(folder: Path, pages: int, vectors: int, bits: int, batch: int) -> None:
    """Write an index of the vectors that `benchmarks.store build` writes, ten pages per document."""
    folder_bytes = import_module("anchorfold.index.store.folder").folder_bytes
    vars(invented_index)["PAGES_A_DOCUMENT"] = 10
    fingerprint = import_module("anchorfold.backbones.nano.query_side").QuerySide().fingerprint
    table: Any = invented_index.new_table(folder, DIM, bits, "nano", fingerprint)  # type: ignore[attr-defined]
    for first in range(0, pages, batch):
        count = min(batch, pages - first)
        rows = np.random.default_rng(first).standard_normal((count * vectors, DIM), np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        invented_index.append_pages(table, rows, np.full(count, vectors), 200)
        table.tidy()
        print(f"{first + count:,} pages", file=sys.stderr, flush=True)
    print(f"{folder_bytes(folder) / pages:.0f} bytes per page")


def measure(folder: Path, add: bool) -> None:
    """Print the times of an index that `build` wrote: wall time and processor time in seconds."""
    from anchorfold import Index

    query = np.random.default_rng(1).standard_normal((8, DIM)).astype(np.float32)
    with timed("open and first search"):
        index = Index.open(folder)
        index.search_vectors([query])
    for _ in range(3):
        with timed("search, exact"):
            index.search_vectors([query], exact=True)
    if add:
        with tempfile.TemporaryDirectory() as empty, timed("add with nothing changed"):
            index.add(empty)


@contextmanager
def timed(name: str) -> Iterator[None]:
    """Print the time of a block."""
    wall, processor = time.perf_counter(), time.process_time()
    yield
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    print(f"{name}: {wall:.3f} s, processor {processor:.3f} s", flush=True)


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("build", "measure"))
    parser.add_argument("index", type=Path)
    parser.add_argument("--pages", type=int, default=100_000)
    parser.add_argument("--vectors", type=int, default=10)
    parser.add_argument("--bits", type=int, default=1)
    parser.add_argument("--batch", type=int, default=20_000)
    parser.add_argument("--add", action="store_true", help="also measure `add` with nothing changed")
    arguments = parser.parse_args()
    if arguments.command == "build":
        build(arguments.index, arguments.pages, arguments.vectors, arguments.bits, arguments.batch)
    else:
        measure(arguments.index, arguments.add)


if __name__ == "__main__":
    main()
