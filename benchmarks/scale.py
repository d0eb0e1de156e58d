"""Search on large indexes: agreement, time, memory and disk by number of pages, compared with other libraries.

    anchorfold eval dev_debian --methods anchorfold@0.05 --keep-vectors -o RUN    # real vectors, for the noise
    python -m benchmarks.scale RUN --pages 10000 100000 -o figures.jsonl
    python -m benchmarks.scale RUN --pages 1000000 -o figures.jsonl               # about 10 GB of disk
    python -m benchmarks.scale RUN --validate --corpus dev_debian                   # real against synthetic pages
    python -m benchmarks.scale --plot figures.jsonl scale.png

Pages are those of `benchmarks.word_pages`; queries are three to eight words of a page. Indexes stay in --folder;
opening and searching run in a separate process, and memory is the peak of that process.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.retrieval.candidate_files import update_lists
from anchorfold.retrieval.embedded_store import EmbeddedStore
from anchorfold.storage.file_errors import folder_bytes
from anchorfold.storage.hits import SearchRequest
from benchmarks.invented_index import append_pages, new_store
from benchmarks.word_pages import WordPages

CHUNK, TOP, EXACT = 20_000, 10, 100
BUILT = "built.json"
Ranking = list[tuple[int, float]]


def build(folder: Path, run: Path, pages: int, widths: list[int], queries: int) -> None:
    """Write indexes of the same pages at several bit widths, the queries, and the build times."""
    source = WordPages(run)
    stores = {bits: new_store(folder / f"{bits}.index", 128, bits) for bits in widths}
    seconds = {str(bits): {"writing": 0.0, "listing": 0.0} for bits in widths}
    chosen: list[np.ndarray] = []
    for start in range(0, pages, CHUNK):
        vectors, lengths, words = source.draw(min(CHUNK, pages - start))
        share = max(1, -(-queries * len(words) // pages))
        chosen += [source.query(words[i]) for i in source.rng.choice(len(words), share)]
        for bits, store in stores.items():
            began = time.perf_counter()
            append_pages(store, vectors, lengths)
            with store.writing():
                store.tidy()
            seconds[str(bits)]["writing"] += time.perf_counter() - began
        print(f"\r{start + len(words):,} pages written", end="", file=sys.stderr, flush=True)
    for bits, store in stores.items():
        began = time.perf_counter()
        with store.writing():
            update_lists(store)
        seconds[str(bits)]["listing"] = time.perf_counter() - began
    np.savez(folder / "queries.npz", *chosen[:queries])
    (folder / BUILT).write_text(json.dumps(seconds))


def measure_search(folder: str, bits: int) -> dict[str, float]:
    """Measure opening, candidate search, exhaustive search, and search after a commit."""
    queries = read_queries(Path(folder))
    began = time.perf_counter()
    store = EmbeddedStore.open(Path(folder) / f"{bits}.index")
    scanner = store.pages.with_scanner(lambda _, scanner: scanner)
    live = scanner.live
    scanner.top_k(queries[:1], TOP)
    opening = time.perf_counter() - began
    fast, fast_times = timed(lambda q: scanner.top_k([q], TOP)[0], queries)
    memory = peak_memory()
    exact, scan_times = timed(lambda q: scanner.top_k([q], TOP, candidates=len(live))[0], queries[:EXACT])
    overlap, first = agreement_of(fast, exact)
    return {
        "pages": int(live.allowed.sum()), "bits": bits, "bytes": folder_bytes(store.folder), "opening": opening,
        "megabytes": memory, "candidates": float(np.median(fast_times)), "slowest": float(np.max(fast_times)),
        "all pages": float(np.median(scan_times)), "overlap": overlap, "first": first, "queries": len(exact),
        "one more": one_more(store, queries[store.version.commits % len(queries)]),  # a different query in each run
    }  # fmt: skip


def one_more(store: EmbeddedStore, query: np.ndarray) -> float:
    """Return the seconds from a commit until an open reader returns results that include it."""
    reader = EmbeddedStore.open(store.folder)
    reader.search_visual(SearchRequest(vectors=[query], top_k=TOP))
    document = np.tile(query / np.linalg.norm(query, axis=1, keepdims=True), (10, 1))
    began = time.perf_counter()
    (name,) = append_pages(store, document, np.full(10, len(query)))
    hits = reader.search_visual(SearchRequest(vectors=[query], top_k=TOP))[0]
    seconds = time.perf_counter() - began
    assert hits[0].document == name, "the new document is not the best hit"
    return seconds


def peak_memory() -> float:
    """Return the peak memory of this process in megabytes; `ru_maxrss` includes that of the parent process."""
    status = Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 1e3  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def read_queries(folder: Path) -> list[np.ndarray]:
    archive = np.load(folder / "queries.npz")
    return [archive[name] for name in archive.files]


def agreement_of(fast: list[Ranking], exact: list[Ranking]) -> tuple[float, float]:
    """Return the mean overlap of the top pages, and the share of equal first pages."""
    pairs = [({p for p, _ in a}, {p for p, _ in b}) for a, b in zip(fast, exact, strict=False)]
    overlap = float(np.mean([len(a & b) / len(b) for a, b in pairs]))
    return overlap, float(np.mean([a[0][0] == b[0][0] for a, b in zip(fast, exact, strict=False)]))


def timed(search: Callable[[np.ndarray], Ranking], queries: list[np.ndarray]) -> tuple[list[Ranking], list[float]]:
    """Return the results and the duration of each query in seconds."""
    answers, seconds = [], []
    for query in queries:
        began = time.perf_counter()
        answers.append(search(query))
        seconds.append(time.perf_counter() - began)
    return answers, seconds


def in_own_process(function: str, *arguments: Any) -> dict[str, float]:
    """Call a function of a benchmark module in a separate process and return its result."""
    module, _, name = function.rpartition(".")
    code = f"import json, sys; from {module} import {name} as f; print(json.dumps(f(*json.loads(sys.argv[1]))))"
    command = [sys.executable, "-c", code, json.dumps(arguments)]
    completed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(completed.stdout.splitlines()[-1])
    return figures


def plot(figures: Path, image: Path) -> None:
    """Plot time, memory and disk by number of pages on logarithmic axes."""
    import matplotlib.pyplot as plt

    rows = [json.loads(line) for line in figures.read_text().splitlines()]
    axes = plt.subplots(1, 3, figsize=(13, 4.2), constrained_layout=True)[1]

    def draw(axis: int, points: list[dict[str, Any]], column: str, factor: float, style: str, **options: Any) -> None:
        points = sorted((row for row in points if column in row), key=lambda row: row["pages"])
        axes[axis].plot([row["pages"] for row in points], [factor * row[column] for row in points], style, **options)

    for bits, colour, mark in ((1, "#0b6e4f", "o"), (8, "#b5541c", "s")):
        own, label = [row for row in rows if row.get("bits") == bits], f"{bits} bit{'s' if bits > 1 else ''}"
        draw(0, own, "candidates", 1000, f"{mark}-", color=colour, label=f"candidates, {label}")
        draw(0, own, "all pages", 1000, f"{mark}--", color=colour, mfc="white", label=f"full scan, {label}")
        draw(1, own, "megabytes", 1, f"{mark}-", color=colour, label=label)
        draw(2, own, "bytes", 1e-6, f"{mark}-", color=colour, label=label)
    for name, mark in zip(sorted({row["peer"] for row in rows if "peer" in row}), "^vD<>P", strict=True):
        peer = [row for row in rows if row.get("peer") == name]
        draw(0, peer, "seconds", 1000, f"{mark}:", color="0.45", label=name)
        draw(1, peer, "megabytes", 1, f"{mark}:", color="0.45", label=name)
    for axis, title in zip(axes, ("time per query, ms", "peak memory, MB", "disk, MB"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="pages", title=title)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    plt.savefig(image, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="a run of nano that kept its vectors")
    parser.add_argument("--pages", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--bits", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--peers", action="store_true", help="other installed libraries on the same pages")
    parser.add_argument("--folder", type=Path, default=Path("scale-work"), help="keeps the indexes for another run")
    parser.add_argument("-o", "--output", type=Path, default=Path("scale.jsonl"), help="append figures to this file")
    parser.add_argument("--validate", action="store_true", help="agreement on real pages against invented ones")
    parser.add_argument("--corpus", type=Path, help="whose questions to ask of the real pages")
    parser.add_argument("--plot", nargs=2, type=Path, metavar=("FIGURES", "IMAGE"))
    arguments = parser.parse_args()
    if arguments.plot:
        plot(*arguments.plot)
        return
    if arguments.validate:
        from benchmarks.scale_validation import validate

        validate(arguments.run, arguments.corpus)
        return
    for pages in arguments.pages:
        folder = arguments.folder / f"{pages}-pages"
        if not (folder / BUILT).exists():
            build(folder, arguments.run, pages, arguments.bits, arguments.queries)
        built = json.loads((folder / BUILT).read_text())
        rows = [
            {**in_own_process("benchmarks.scale.measure_search", str(folder), bits), **built[str(bits)]}
            for bits in arguments.bits
        ]
        if arguments.peers:
            from benchmarks.peers import available_peers

            peers = available_peers()
            rows += [in_own_process("benchmarks.scale_peers.measure", str(folder), name) for name in peers]
        for row in rows:
            print("\r" + json.dumps(row), flush=True)
            with arguments.output.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
