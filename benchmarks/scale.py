"""Search on large indexes: agreement, time, memory and disk against the number of pages, peers beside it.

    python -m benchmarks.scale --pages 10000 100000 --bits 1        # some minutes
    python -m benchmarks.scale --pages 1000000 --bits 1             # an hour on two cores, and 2 GB of disk
    python -m benchmarks.scale --plot figures.jsonl docs/scale.png

Pages look like nano's: 40 to 80 words that follow each other in real text (descriptions and changelogs of the system's
packages, manual pages), each the word's own vector with noise, so that a word agrees with what is seen of it as on a
real page (--cosine). Queries are three to eight words of a page, in nano's own weights. Each size runs in this process;
memory is what it holds at its peak for opening and searching, without building.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from anchorfold.backbones.nano.query_side import QuerySide
from anchorfold.index.candidate_files import open_candidates, update_lists
from anchorfold.index.live import LivePages
from anchorfold.index.scan import Scanner
from anchorfold.index.store.folder import folder_bytes
from anchorfold.index.store.table import PageTable
from benchmarks.invented_index import append_pages, new_table, words_of

TEXTS = ("/usr/share/doc/**/*", "/usr/share/man/man*/*", "/var/lib/dpkg/status", "/var/lib/apt/lists/*Packages")
LOW, HIGH, CHUNK, TOP = 40, 80, 20_000, 10
SEARCH = """
import json, resource, sys
from benchmarks.scale import measure_search
print(json.dumps(measure_search(*json.loads(sys.argv[1]))))
"""


def real_lines(most: int = 2_000_000) -> list[str]:
    """Lines of text that is on this system, in lower case."""
    lines: list[str] = []
    for pattern in TEXTS:
        for path in sorted(Path("/").glob(pattern.removeprefix("/"))):
            if len(lines) >= most or not path.is_file():
                continue
            try:
                data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
                text = data[:5_000_000].decode()
            except (OSError, UnicodeDecodeError, EOFError, gzip.BadGzipFile):
                continue
            lines += [" ".join(re.findall(r"[a-z0-9]+", line.lower())) for line in text.splitlines() if len(line) > 20]
    return lines


class Pages:
    """Draws pages and queries. `cosine` is that of a word and of what is seen of it."""

    def __init__(self, cosine: float, seed: int = 0) -> None:
        self.side = QuerySide()
        known = self.side.words.words
        self.vectors = np.concatenate([self.side.encode_queries([w])[0] for w in known[:20_000]])
        self.units = self.vectors / np.linalg.norm(self.vectors, axis=1, keepdims=True)
        self.rng = np.random.default_rng(seed)
        self.texts = words_of(real_lines(), {w: i for i, w in enumerate(known[:20_000])}, self.rng)
        self.noise = (1 / cosine**2 - 1) ** 0.5 / self.units.shape[1] ** 0.5

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Vectors `(V, 128)`, lengths, and the word numbers of each page."""
        pages: list[np.ndarray] = []
        while len(pages) < count:
            words = list(dict.fromkeys(next(self.texts)))[: int(self.rng.integers(LOW, HIGH + 1))]
            if len(words) >= LOW:
                pages.append(np.array(words))
        seen = self.units[np.concatenate(pages)]
        seen = seen + self.noise * self.rng.standard_normal(seen.shape, np.float32)
        seen /= np.linalg.norm(seen, axis=1, keepdims=True)
        return seen, np.array([len(p) for p in pages]), pages

    def query(self, words: np.ndarray) -> np.ndarray:
        """Some words of a page, weighed as nano weighs them."""
        return self.vectors[self.rng.choice(words, min(len(words), int(self.rng.integers(3, 9))), replace=False)]


def build(folder: Path, pages: int, bits: int, cosine: float, queries: int) -> dict[str, float]:
    """An index of so many pages, and queries beside it; seconds of what is done to the vectors."""
    source = Pages(cosine)
    table = new_table(folder / "my.index", 128, bits)
    chosen: list[np.ndarray] = []
    writing = 0.0
    for start in range(0, pages, CHUNK):
        vectors, lengths, words = source.draw(min(CHUNK, pages - start))
        chosen += [source.query(words[i]) for i in source.rng.choice(len(words), max(1, queries * len(words) // pages))]
        began = time.perf_counter()
        append_pages(table, vectors, lengths)
        table.tidy()
        writing += time.perf_counter() - began
        print(f"\r{start + len(words):,} pages written", end="", file=sys.stderr, flush=True)
    began = time.perf_counter()
    update_lists(table)
    listing = time.perf_counter() - began
    np.savez(folder / "queries.npz", *chosen[:queries])
    return {"writing": writing, "listing": listing}


def measure_search(folder: str, bits: int) -> dict[str, float]:
    """Open, search with candidates and with all pages; in a process of its own."""
    archive = np.load(Path(folder) / "queries.npz")
    queries = [archive[name] for name in archive.files]
    began = time.perf_counter()
    table = PageTable.open(Path(folder) / "my.index")
    live = LivePages(table)
    scanner = Scanner(live, open_candidates(table, live))
    scanner.top(queries[:1], TOP)
    opening = time.perf_counter() - began
    fast, fast_times = timed(lambda q: scanner.top([q], TOP)[0], queries)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    exact, exact_times = timed(lambda q: scanner.top([q], TOP, exact=True)[0], queries[:50])
    _, whole_times = timed(lambda q: scanner._scanned([q], TOP, live.allowed, scanner.way(None))[0], queries[:50])
    pairs = list(zip(fast, exact, strict=False))
    overlap = np.mean([len({p for p, _ in a} & {p for p, _ in b}) / len(b) for a, b in pairs])
    first = np.mean([a[0][0] == b[0][0] for a, b in pairs])
    return {
        "pages": int(live.allowed.sum()), "bits": bits, "bytes": folder_bytes(table.folder), "opening": opening,
        "megabytes": memory, "candidates": np.median(fast_times), "float scan": np.median(exact_times),
        "integer scan": np.median(whole_times), "overlap": float(overlap), "first": float(first), "queries": len(pairs),
    }  # fmt: skip


def timed(run: Callable[[np.ndarray], list[tuple[int, float]]], queries: list[np.ndarray]) -> tuple[list[list[tuple[int, float]]], list[float]]:  # fmt: skip  # noqa: E501
    answers, seconds = [], []
    for query in queries:
        began = time.perf_counter()
        answers.append(run(query))
        seconds.append(time.perf_counter() - began)
    return answers, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 1])
    parser.add_argument("--cosine", type=float, default=0.8)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--to", type=Path, help="append the figures to this file as JSON lines")
    parser.add_argument("--plot", nargs=2, type=Path, metavar=("FIGURES", "PICTURE"))
    arguments = parser.parse_args()
    if arguments.plot:
        plot(*arguments.plot)
        return
    for pages in arguments.pages:
        for bits in arguments.bits:
            with tempfile.TemporaryDirectory(dir=arguments.to.parent if arguments.to else None) as name:
                built = build(Path(name), pages, bits, arguments.cosine, arguments.queries)
                command = [sys.executable, "-c", SEARCH, json.dumps([name, bits])]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                figures = {**json.loads(done.stdout.splitlines()[-1]), **built}
            print("\r" + json.dumps(figures), flush=True)
            if arguments.to:
                with arguments.to.open("a") as file:
                    file.write(json.dumps(figures) + "\n")


def plot(figures: Path, picture: Path) -> None:
    """Time, memory and disk against pages, both axes logarithmic."""
    import matplotlib.pyplot as plt

    rows = [json.loads(line) for line in figures.read_text().splitlines()]
    _, axes = plt.subplots(1, 3, figsize=(12, 3.6), constrained_layout=True)
    for bits in sorted({row["bits"] for row in rows}):
        some = sorted((row for row in rows if row["bits"] == bits), key=lambda row: row["pages"])
        pages = [row["pages"] for row in some]
        for name, style in (("candidates", "o-"), ("integer scan", "s--"), ("float scan", "^:")):
            axes[0].plot(pages, [1000 * row[name] for row in some], style, label=f"{name}, {bits} bits")
        axes[1].plot(pages, [row["megabytes"] for row in some], "o-", label=f"{bits} bits")
        axes[2].plot(pages, [row["bytes"] / 1e6 for row in some], "o-", label=f"{bits} bits")
    for axis, title in zip(axes, ("a query, ms", "resident memory, MB", "on disk, MB"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="pages", title=title)
        axis.legend(fontsize=7)
    plt.savefig(picture, dpi=130)


if __name__ == "__main__":
    main()
