"""Thousands of damaged files through the renderer: it must lose pages, one plain line each, and nothing else.

    nice python -m benchmarks.fuzz_renderer                  # 10,000 files, a few minutes
    python -m benchmarks.fuzz_renderer --files 500 --seed 7
    python -m benchmarks.fuzz_renderer --write 4711 out      # file 4711 alone, to look at

Small valid PDFs, PNGs, JPEGs, WebPs and TIFFs are made here, and damaged by flipped bits, cuts, splices, edited
lengths and numbers, deleted and doubled parts. The same seed makes the same files. It fails if the renderer's parent
raises anything, if its process ends with a traceback, if something is printed, if a page or document is lost without
a line, if a line is not plain, if a page has the digest of another file, or if a process needs more than its memory.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import os
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from anchorfold.documents import Document, DocumentFinished, PageFailed, PageRendered, Renderer
from anchorfold.documents.rendering import Event, Request
from benchmarks.damaged_files import damaged, seeds

MEGABYTE = 10**6
PIXELS = 100_000  # of a page: small, so that damage and not drawing takes the time
BATCH = 250  # files on the disk at once
PARENT_MEMORY = 400  # megabytes; the renderer's is an option
UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


@dataclass
class FuzzReport:
    """What became of all pages; `violations` must be empty. Memory in bytes."""

    files: int = 0
    rendered: int = 0
    lost_pages: Counter[str] = field(default_factory=Counter)
    lost_documents: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    parent_memory: int = 0
    child_memory: int = 0
    seconds: float = 0.0


@contextmanager
def captured_output() -> Iterator[io.BufferedRandom]:
    """What this process and its children print meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as file:
        before = os.dup(1), os.dup(2)
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            yield file
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, old in zip((1, 2), before, strict=True):
                os.dup2(old, descriptor)
                os.close(old)


def fuzz(files: int, seed: int, memory: int, seconds: float) -> FuzzReport:
    """Render so many damaged files, and check everything that can be checked of the events."""
    report, began, originals = FuzzReport(files), time.monotonic(), seeds()
    for first in range(0, files, BATCH):
        with tempfile.TemporaryDirectory() as folder, captured_output() as printed:
            documents, digests = {}, []
            for number in range(first, min(first + BATCH, files)):
                suffix, content = damaged(number, seed, originals)
                path = Path(folder) / f"{number}.{suffix}"
                path.write_bytes(content)
                documents[Document(path.name, path, len(content), path.stat().st_mtime_ns)] = number
                digests.append(hashlib.blake2b(content, digest_size=16).hexdigest())
            events: dict[Document, list[Event]] = {document: [] for document in documents}
            try:
                with Renderer(map(Request, documents), PIXELS, memory=memory, seconds=seconds) as renderer:
                    for event in renderer:
                        events[event.document].append(event)
            except Exception as error:
                report.violations.append(f"files from {first} on: the parent failed with {error!r}")
            for (document, document_events), digest in zip(events.items(), digests, strict=True):
                check(report, document.name, document_events, digest)
            printed.seek(0)
            if output := printed.read(2000):
                report.violations.append(f"files from {first} on: it printed {output!r}")
        if sys.stderr.isatty():
            print(f"\r{min(first + BATCH, files)} of {files}", end="", file=sys.stderr)
    report.seconds = time.monotonic() - began
    report.parent_memory = own_peak()
    report.child_memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * UNIT
    return report


def own_peak() -> int:
    """Bytes. Linux's usual answer is not ours: a process starts with the peak of the one that started it."""
    try:
        return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def check(report: FuzzReport, name: str, events: list[Event], digest: str) -> None:
    """Count the events of one document, and note what must not be."""

    def wrong(what: str) -> None:
        report.violations.append(f"{name}: {what}")

    if not events or not isinstance(end := events[-1], DocumentFinished):
        return wrong("it has no last event")
    pages = [event for event in events if isinstance(event, PageRendered | PageFailed)]
    numbers = [page.number for page in pages]
    total = max((page.total for page in pages), default=0)
    complete = numbers == list(range(total)) if end.problem is None else numbers == sorted(set(numbers))
    if not complete or len(pages) != len(events) - 1 or not (pages or end.problem):
        wrong(f"of {total} pages {numbers} came, and {end.problem} was said")
    if {event.identity.digest for event in (*pages, end) if event.identity} - {digest}:
        wrong("a page was rendered from other bytes")
    report.rendered += sum(isinstance(page, PageRendered) for page in pages)
    for counter, reasons in (
        (report.lost_pages, [page.problem for page in pages if isinstance(page, PageFailed)]),
        (report.lost_documents, [end.problem] if end.problem else []),
    ):
        for reason in reasons:
            counter[reason] += 1
            if not plain(reason):
                wrong(f"its reason is {reason!r}")


def plain(reason: str) -> bool:
    """One printable line without names of exceptions; a Python traceback ends the process with exit code 1."""
    odd = re.search(r"Error|Exception|Traceback|Warning|0x|<|\(exit |garbled", reason)
    return 0 < len(reason) <= 120 and reason.isprintable() and not odd


def main() -> int:
    """Run, print, and say by the exit code whether all went well."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", type=int, default=512, help="megabytes for the renderer's process")
    parser.add_argument("--seconds", type=float, default=10.0, help="for a page")
    parser.add_argument("--write", nargs=2, metavar=("NUMBER", "FOLDER"), help="write one file and end")
    options = parser.parse_args()
    if options.write:
        number, folder = int(options.write[0]), Path(options.write[1])
        suffix, content = damaged(number, options.seed, seeds())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.{suffix}").write_bytes(content)
        return 0
    report = fuzz(options.files, options.seed, options.memory * MEGABYTE, options.seconds)
    print(f"\n{report.files} files in {report.seconds:.0f} s: {report.rendered} pages rendered")
    for title, lost in (("pages lost", report.lost_pages), ("documents lost", report.lost_documents)):
        print(f"{lost.total()} {title}")
        for reason, times in lost.most_common():
            print(f"  {times:6} {reason}")
    child, parent = report.child_memory / MEGABYTE, report.parent_memory / MEGABYTE
    print(f"peak memory: renderer {child:.0f} MB, parent {parent:.0f} MB")
    if child > 1.5 * options.memory or parent > PARENT_MEMORY:
        report.violations.append(f"a process used too much memory: {options.memory} and {PARENT_MEMORY} MB are allowed")
    print(f"{len(report.violations)} violations")
    for violation in report.violations[:50]:
        print(f"  {violation}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
