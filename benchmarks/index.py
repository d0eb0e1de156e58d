"""Overhead of indexing: wall time relative to encoding time, and memory by number of pages.

    python -m benchmarks.index                    # about four minutes on two cores
    python -m benchmarks.index --pdf FILE.pdf     # your own pages

Time is measured with nano on 120 pages, memory with a tiny random model on thousands of pages, since encoder memory
does not depend on the number of pages. Each size runs in its own process. Memory is the peak private memory of the
processes, available on Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from anchorfold.testing.tiny import make

BAR = 1.1
GROWTH = 50.0  # maximum growth in megabytes for three times as many pages

RUN = """
import json, os, sys
from anchorfold.indexes.index import Index

def own_memory(pid):  # megabytes; files that are mapped into memory can be dropped at any time and do not count
    try:
        lines = open(f"/proc/{pid}/status").read().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000

peak = {"self": 0.0, "renderer": 0.0}
def watch(_):
    if sys.platform != "linux":
        return
    peak["self"] = max(peak["self"], own_memory("self"))
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    for task in os.listdir("/proc/self/task"):
        children += open(f"/proc/self/task/{task}/children").read().split()
    peak["renderer"] = max([peak["renderer"], *(own_memory(c) for c in children)])

index = Index.create(sys.argv[1], sys.argv[3])
report = index.add(sys.argv[2], progress=watch)
watch(None)
print(json.dumps([report.pages, report.seconds, report.encode_seconds, peak["self"], peak["renderer"]]))
"""


def sample(folder: Path, copies: int, pdf: Path | None) -> Path:
    """Write a folder with copies of the sample report and slides, or of a given PDF."""
    from anchorfold.demo.sample_documents import report, slides

    folder.mkdir()
    for i in range(copies):
        if pdf is not None:
            (folder / f"{i}.pdf").write_bytes(pdf.read_bytes() + b"\n" * i)
            continue
        report().output(str(folder / f"report-{i}.pdf"))
        slides().output(str(folder / f"slides-{i}.pdf"))
    return folder


def run(folder: Path, copies: int, pdf: Path | None, model: str) -> tuple[int, float, float]:
    """Index copies; return pages, wall time relative to encoding time, and megabytes of both processes."""
    documents = sample(folder / f"documents-{copies}-{Path(model).name}", copies, pdf)
    index_path = folder / f"{copies}-{Path(model).name}.index"
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(index_path), str(documents), model]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    pages, wall, encode, own, child = json.loads(completed.stdout.splitlines()[-1])
    memory = f"  peak memory {own:6.0f} MB, renderer {child:4.0f} MB" if own else ""
    print(f"{Path(model).name}: {pages:5} pages  {pages / wall:5.2f} pages/s  wall / encoding {wall / encode:.3f}"
          f"{memory}", flush=True)  # fmt: skip
    return pages, wall / encode, own + child


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pdf", type=Path)
    parser.add_argument("--copies", type=int, nargs=2, default=(30, 90), help="for memory: a smaller and a larger run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if sys.platform == "linux":
            tiny = str(make("colpali", folder / "tiny"))
            small, large = (run(folder, copies, arguments.pdf, tiny) for copies in arguments.copies)
            growth = large[2] - small[2]
            print(f"memory from {small[0]} to {large[0]} pages: {growth:+.0f} MB (bar {GROWTH:.0f} MB) {'met' if growth <= GROWTH else 'MISSED'}")  # fmt: skip  # noqa: E501
        _, ratio, _ = run(folder, 5, arguments.pdf, "nano")
        print(f"wall / encoding: {ratio:.3f} (bar <= {BAR}) {'met' if ratio <= BAR else 'MISSED'}")


if __name__ == "__main__":
    main()
