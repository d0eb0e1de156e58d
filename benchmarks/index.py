"""What indexing costs beyond encoding: wall time over pure encoding time, and memory against the number of pages.

    python -m benchmarks.index                    # about five minutes on two cores
    python -m benchmarks.index --pdf FILE.pdf     # pages of your own

Each size runs in a process of its own. Memory is what the processes hold for themselves, at its peak.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

BAR = 1.1
GROWTH = 50.0  # megabytes that three times as many pages may add

RUN = """
import json, os, sys
from anchorfold.index import Index

def own_memory(pid):  # megabytes; files that are mapped into memory can be dropped at any time and do not count
    try:
        lines = open(f"/proc/{pid}/status").read().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) / 1000

peak = {"self": 0.0, "renderer": 0.0}
def watch(_):
    peak["self"] = max(peak["self"], own_memory("self"))
    children = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    for task in os.listdir("/proc/self/task"):
        children += open(f"/proc/self/task/{task}/children").read().split()
    peak["renderer"] = max([peak["renderer"], *(own_memory(c) for c in children)])

index = Index.create(sys.argv[1])
report = index.add(sys.argv[2], progress=watch)
watch(None)
print(json.dumps([report.pages, report.seconds, report.encode_seconds, peak["self"], peak["renderer"]]))
"""


def sample(folder: Path, copies: int, pdf: Path | None) -> Path:
    """A folder of documents: the demo's report and slides, several times over, or a PDF of the user's."""
    from anchorfold.demo.corpus import report, slides

    folder.mkdir()
    for i in range(copies):
        if pdf is not None:
            (folder / f"{i}.pdf").write_bytes(pdf.read_bytes() + b"\n" * i)
            continue
        report().output(str(folder / f"report-{i}.pdf"))
        slides().output(str(folder / f"slides-{i}.pdf"))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pdf", type=Path)
    parser.add_argument("--copies", type=int, nargs=2, default=(5, 15))
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for copies in arguments.copies:
            documents = sample(Path(name) / f"documents-{copies}", copies, arguments.pdf)
            command = [sys.executable, "-c", RUN, str(Path(name) / f"{copies}.index"), str(documents)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            pages, wall, encode, own, child = json.loads(done.stdout.splitlines()[-1])
            rows.append((pages, wall / encode, own, child))
            print(f"{pages:5} pages  {pages / wall:5.2f} pages/s  wall / encoding {wall / encode:.3f}  "
                  f"peak memory {own:6.0f} MB, renderer {child:4.0f} MB", flush=True)  # fmt: skip
    ratio = rows[-1][1]
    growth = rows[-1][2] + rows[-1][3] - rows[0][2] - rows[0][3]
    print(f"wall / encoding: {ratio:.3f} (bar <= {BAR}) {'met' if ratio <= BAR else 'MISSED'}")
    print(f"memory from {rows[0][0]} to {rows[-1][0]} pages: {growth:+.0f} MB (bar {GROWTH:.0f} MB) {'met' if growth <= GROWTH else 'MISSED'}")  # fmt: skip  # noqa: E501


if __name__ == "__main__":
    main()
