"""Render thousands of damaged files and check that only their pages fail, each with a short reason.

    nice python -m benchmarks.fuzz_renderer                  # 10,000 files, a few minutes
    python -m benchmarks.fuzz_renderer --files 500 --seed 7
    python -m benchmarks.fuzz_renderer --office --files 500 --seconds 120     # formats that are converted to PDF
    python -m benchmarks.fuzz_renderer --write 4711 out      # write file 4711 for inspection

Small valid PDF, PNG, JPEG, WebP and TIFF files are damaged by flipped bits, truncation, splices, edited lengths and
numbers, and deleted or duplicated parts; the same seed gives the same files. A violation is an exception in the parent,
a traceback in the renderer process, output of any process, a page or document without an event, a reason with names of
exceptions, a page with the digest of another file, or a process above its memory limit.

With `--office`, half of the office files refer to a web server on this machine, and files that unpack, nest or repeat
beyond all measure are converted first. A request to the server is a violation.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from anchorfold.documents import (
    Document,
    DocumentFinished,
    PageFailed,
    PageRendered,
    Renderer,
    RenderEvent,
    RenderRequest,
)
from anchorfold.documents.limits import default_memory
from benchmarks.damaged_files import damaged, office_seeds, seeds

MEGABYTE = 10**6
PIXELS = 100_000  # per page: small, so that little time is spent on drawing
BATCH = 250  # files on disk at the same time
PARENT_MEMORY = 400  # megabytes
UNUSED = "http://127.0.0.1:9"  # address without a server
UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


@dataclass
class FuzzReport:
    """Counts of rendered and failed pages; memory in bytes."""

    files: int = 0
    rendered: int = 0
    failed_pages: Counter[str] = field(default_factory=Counter)
    failed_documents: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    parent_memory: int = 0
    child_memory: int = 0
    seconds: float = 0.0


@contextmanager
def captured_output() -> Iterator[io.BufferedRandom]:
    """Capture the output of this process and its children."""
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


def fuzz(files: int, seed: int, memory: int, seconds: float, office: bool = False) -> FuzzReport:
    """Render damaged files and check their events."""
    if office:
        return fuzz_office(files, seed, memory, seconds)
    originals = seeds()
    return render(files, lambda number: damaged(number, seed, originals), memory, seconds)


def fuzz_office(files: int, seed: int, memory: int, seconds: float) -> FuzzReport:
    """Convert malicious files and then damaged ones, with an empty cache, and record requests to a local server."""
    from tests.documents.hostile_office import bombs, web_server

    with web_server() as (address, received), tempfile.TemporaryDirectory() as cache:
        os.environ["ANCHORFOLD_CACHE"] = cache
        intact = [(name.rpartition(".")[2], content) for name, content in bombs().items()]
        originals = office_seeds(address)

        def content(number: int) -> tuple[str, bytes]:
            return intact[number] if number < len(intact) else damaged(number - len(intact), seed, originals)

        report = render(len(intact) + files, content, memory, seconds)
        report.violations += [f"request to the network: {path}" for path in received]
    return report


def render(files: int, content_of: Callable[[int], tuple[str, bytes]], memory: int, seconds: float) -> FuzzReport:
    """Render numbered files, given as (suffix, content), and check their events."""
    report, began = FuzzReport(files), time.monotonic()
    for first in range(0, files, BATCH):
        with tempfile.TemporaryDirectory() as folder, captured_output() as printed:
            documents, digests = {}, []
            for number in range(first, min(first + BATCH, files)):
                suffix, content = content_of(number)
                path = Path(folder) / f"{number}.{suffix}"
                path.write_bytes(content)
                documents[Document(path.name, path, len(content), path.stat().st_mtime_ns)] = number
                digests.append(hashlib.blake2b(content, digest_size=16).hexdigest())
            events: dict[Document, list[RenderEvent]] = {document: [] for document in documents}
            try:
                with Renderer(map(RenderRequest, documents), PIXELS, memory=memory, seconds=seconds) as renderer:
                    for event in renderer:
                        events[event.document].append(event)
            except Exception as error:
                report.violations.append(f"files from {first}: the parent failed with {error!r}")
            for (document, document_events), digest in zip(events.items(), digests, strict=True):
                check(report, document.name, document_events, digest)
            printed.seek(0)
            if output := printed.read(2000):
                report.violations.append(f"files from {first}: printed {output!r}")
        if sys.stderr.isatty():
            print(f"\r{min(first + BATCH, files)} of {files}", end="", file=sys.stderr)
    report.seconds = time.monotonic() - began
    report.parent_memory = own_peak()
    report.child_memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * UNIT
    return report


def own_peak() -> int:
    """Return the peak memory in bytes; `ru_maxrss` on Linux includes the peak of the parent process."""
    try:
        return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def check(report: FuzzReport, name: str, events: list[RenderEvent], digest: str) -> None:
    """Count the events of one document and record violations."""

    def wrong(what: str) -> None:
        report.violations.append(f"{name}: {what}")

    if not events or not isinstance(end := events[-1], DocumentFinished):
        return wrong("no last event")
    pages = [event for event in events if isinstance(event, PageRendered | PageFailed)]
    numbers = [page.number for page in pages]
    total = max((page.total for page in pages), default=0)
    complete = numbers == list(range(total)) if end.problem is None else numbers == sorted(set(numbers))
    if not complete or len(pages) != len(events) - 1 or not (pages or end.problem):
        wrong(f"events for pages {numbers} of {total}, problem {end.problem!r}")
    if {event.identity.digest for event in (*pages, end) if event.identity} - {digest}:
        wrong("a page was rendered from other bytes")
    report.rendered += sum(isinstance(page, PageRendered) for page in pages)
    for counter, reasons in (
        (report.failed_pages, [page.problem for page in pages if isinstance(page, PageFailed)]),
        (report.failed_documents, [end.problem] if end.problem else []),
    ):
        for reason in reasons:
            counter[reason] += 1
            if not plain(reason):
                wrong(f"reason {reason!r}")


def plain(reason: str) -> bool:
    """Return whether a reason is one short line without names of exceptions (a traceback is exit code 1)."""
    odd = re.search(r"Error|Exception|Traceback|Warning|0x|<|\(exit |invalid message", reason)
    return 0 < len(reason) <= 120 and reason.isprintable() and not odd


def main() -> int:
    """Run and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--office", action="store_true", help="Damage office, HTML and mail files.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--memory", type=int, default=512, help="Memory limit of the renderer process in megabytes.")
    parser.add_argument("--seconds", type=float, default=10.0, help="Time limit per page.")
    parser.add_argument("--write", nargs=2, metavar=("NUMBER", "FOLDER"), help="Write one file and exit.")
    options = parser.parse_args()
    if options.write:
        number, folder = int(options.write[0]), Path(options.write[1])
        suffix, content = damaged(number, options.seed, office_seeds(UNUSED) if options.office else seeds())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.{suffix}").write_bytes(content)
        return 0
    report = fuzz(options.files, options.seed, options.memory * MEGABYTE, options.seconds, options.office)
    print(f"\n{report.files} files in {report.seconds:.0f} s: {report.rendered} pages rendered")
    for title, failed in (("pages failed", report.failed_pages), ("documents failed", report.failed_documents)):
        print(f"{failed.total()} {title}")
        for reason, times in failed.most_common():
            print(f"  {times:6} {reason}")
    child, parent = report.child_memory / MEGABYTE, report.parent_memory / MEGABYTE
    print(f"peak memory: renderer {child:.0f} MB, parent {parent:.0f} MB")
    limit = max(options.memory, default_memory() / MEGABYTE if options.office else 0)  # converters have their own
    if child > 1.5 * limit or parent > PARENT_MEMORY:
        report.violations.append(f"memory limit exceeded: {limit:.0f} MB renderer, {PARENT_MEMORY} MB parent")
    print(f"{len(report.violations)} violations")
    for violation in report.violations[:50]:
        print(f"  {violation}")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
