"""Startup time of `anchorfold search` and `anchorfold info` in a new process, compared with another version.

    python -m benchmarks.start                                       # this version
    python -m benchmarks.start --against OTHER/src OTHER.index       # interleaved with another version on its own index

The index contains 10,000 synthetic pages of 40 to 115 vectors; the model is nano. Medians; compare them within one run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from anchorfold.backbones.nano.query import NanoQueryEncoder
from benchmarks.invented_index import append_pages, new_store, random_pages

COMMANDS = {"search": ("net revenue by region",), "info": ()}


def run(source: Path, command: str, index: Path) -> float:
    """Return the seconds that a command takes in a new process."""
    arguments = [sys.executable, "-m", "anchorfold", command, str(index), *COMMANDS[command]]
    began = time.perf_counter()
    subprocess.run(arguments, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--bits", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", nargs=2, type=Path, metavar=("SOURCE", "INDEX"))
    arguments = parser.parse_args()
    here = Path(__file__).parent.parent / "src"
    with tempfile.TemporaryDirectory() as name:
        store = new_store(Path(name) / "my.index", 128, arguments.bits, "nano", NanoQueryEncoder().fingerprint)
        append_pages(store, *random_pages(arguments.pages, 128, 40, 115))
        sides = {"this version": (here, store.folder)}
        if arguments.against:
            sides["the other"] = tuple(arguments.against)
        for command in COMMANDS:
            seconds: dict[str, list[float]] = {side: [] for side in sides}
            for i in range(arguments.rounds + 1):
                for side, (source, index) in sides.items():
                    elapsed = run(source, command, index)
                    if i:  # the first round is a warm-up
                        seconds[side].append(elapsed)
            medians = {side: statistics.median(values) for side, values in seconds.items()}
            ratio = medians["this version"] / medians.get("the other", medians["this version"])
            print(
                f"{command}: " + ", ".join(f"{side} {s:.2f} s" for side, s in medians.items()) + f"; ratio {ratio:.3f}"
            )


if __name__ == "__main__":
    main()
