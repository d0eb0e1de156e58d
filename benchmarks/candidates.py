"""Candidate search against a full scan on large indexes that are generated in memory, at 1 bit.

    python -m benchmarks.candidates --pages 100000 1000000          # 1.5 GB for a million pages

A page has 60 words of a Zipf distribution. The code of a word is a random sign pattern with a quarter of its bits
flipped, the centroids are the patterns, and the posting lists are those of the words, so that no clustering is needed.
A query has three to eight words of a page. `benchmarks.scale` builds real indexes.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from anchorfold.quantization.codec import Coding
from anchorfold.retrieval.candidates import Candidates
from anchorfold.retrieval.live_pages import LivePages
from anchorfold.retrieval.scan import Scanner
from anchorfold.storage.records import Version
from benchmarks.kernels import instruction_sets

DIM, WORDS, LENGTH, SEGMENT, TOP = 128, 16_384, 60, 100_000, 10


@dataclass(frozen=True)
class MemorySegment:
    """Pages of a vector file in memory."""

    codes: np.ndarray
    scales: np.ndarray
    version: np.ndarray
    page: np.ndarray
    kept: np.ndarray
    starts: np.ndarray

    def __len__(self) -> int:
        return len(self.kept)

    def rows_of(self, row: int) -> slice:
        return slice(int(self.starts[row]), int(self.starts[row + 1]))

    def coded(self, rows: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.codes[rows], self.scales[rows]

    def verified(self, pages: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.codes, self.scales


@dataclass(frozen=True)
class MemoryLists:
    """Posting lists in memory."""

    columns: Mapping[str, np.ndarray]

    def column(self, name: str) -> np.ndarray:
        return self.columns[name]


def make_scanner(pages: int, rng: np.random.Generator) -> tuple[Scanner, list[np.ndarray]]:
    """Return a scanner and 100 queries."""
    coding = Coding(DIM, 1)
    patterns = rng.integers(0, 256, (WORDS, DIM // 8), np.uint8)
    levels = coding.unpack(patterns).astype(np.float32) / DIM**0.5
    frequency = 1 / np.arange(3, WORDS + 3)
    edges = np.cumsum(frequency / frequency.sum()).astype(np.float32)
    segments, lists, queries = {}, {}, []
    for number, first in enumerate(range(0, pages, SEGMENT)):
        count = min(SEGMENT, pages - first)
        words = np.minimum(np.searchsorted(edges, rng.random(count * LENGTH, np.float32)), WORDS - 1).astype(np.int32)
        noise = rng.integers(0, 256, (2, len(words), DIM // 8), np.uint8)
        codes = patterns[words] ^ (noise[0] & noise[1])
        starts = np.arange(0, len(words) + 1, LENGTH, dtype=np.int64)
        ones = np.ones(count, np.int64)
        scales = np.full(len(words), 1 / DIM**0.5, np.float16)
        segments[number] = MemorySegment(codes, scales, ones, np.arange(count), ones * LENGTH, starts)
        pairs = np.unique(words.astype(np.int64) * count + np.repeat(np.arange(count), LENGTH))
        bounds = np.searchsorted(pairs, np.arange(WORDS + 1) * count)
        lists[number] = MemoryLists({"bounds": bounds, "pages": (pairs % count).astype(np.uint32)})
        for page in rng.choice(count, -(-100 * count // pages)):
            own = np.unique(words[page * LENGTH : (page + 1) * LENGTH])
            chosen = rng.choice(own, min(len(own), int(rng.integers(3, 9))), replace=False)
            weights = 0.3 + np.log(1 / (edges[chosen] - np.concatenate(([0], edges))[chosen]))[:, None] / 10
            queries.append(coding.rotation.inverse(levels[chosen] * weights.astype(np.float32)))
    live = LivePages(Version("0", 1, ""), coding, cast(Any, segments), np.ones(1, np.int64))
    return Scanner(live, Candidates(live, levels.astype(np.float16), cast(Any, lists))), queries[:100]


def measure(pages: int, counts: list[int]) -> None:
    """Print the time of a full scan, and time and agreement by number of candidates, interleaved."""
    scanner, queries = make_scanner(pages, np.random.default_rng(0))
    runs: dict[str, dict[str, Any]] = {"full scan": {"exact": True}} | {f"{n:,}": {"candidates": n} for n in counts}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    first, common = dict.fromkeys(runs, 0), dict.fromkeys(runs, 0.0)
    scanner.top_k(queries[:1], TOP)
    for query in queries:
        expected: list[int] = []
        for name, options in runs.items():
            began, cpu = time.perf_counter(), time.process_time()
            found = [row for row, _ in scanner.top_k([query], TOP, **options)[0]]
            times[name].append((time.perf_counter() - began, time.process_time() - cpu))
            expected = expected or found
            first[name] += found[:1] == expected[:1]
            common[name] += len(set(found) & set(expected)) / len(expected)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\n{pages:,} pages, {len(queries)} queries; {memory:.1f} GB peak memory, including generation")
    print("| candidates | median, ms | fastest, ms | CPU, ms | top 10 in common, % | same first page, % |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, pairs in times.items():
        wall, cpu_times = np.array(pairs).T * 1000
        print(f"| {name} | {np.median(wall):.1f} | {wall.min():.1f} | {np.median(cpu_times):.1f} | "
              f"{100 * common[name] / len(queries):.1f} | {100 * first[name] / len(queries):.1f} |")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, nargs="+", default=[100_000])
    parser.add_argument("--candidates", type=int, nargs="+", default=[4_000, 8_000, 16_000])
    arguments = parser.parse_args()
    print(instruction_sets())
    for pages in arguments.pages:
        measure(pages, arguments.candidates)


if __name__ == "__main__":
    main()
