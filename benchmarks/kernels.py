"""MaxSim kernels: speed against other libraries, share of memory bandwidth, correctness, batches, server load.

    python -m benchmarks.kernels                                    # 1,000 and 10,000 pages, all parts
    python -m benchmarks.kernels --pages 100000 --parts grid        # about 10 GB of memory
    ANCHORFOLD_KERNEL=baseline python -m benchmarks.kernels --parts grid
    python -m benchmarks.kernels --parts ranking --cases 1000

Times are medians over interleaved rounds; compare them only within one run, on a busy machine by CPU time. Pages have
40 to 80 random unit vectors. `benchmarks.candidates` measures large indexes.
"""

from __future__ import annotations

import argparse
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from anchorfold.quantization.codec import Coding
from anchorfold.retrieval.kernels import Tokens, kernel, maxsim, processors
from anchorfold.retrieval.scan import Scanner
from benchmarks.invented_index import append_pages, new_store, random_pages
from benchmarks.peers import PEERS, TOP, Search, available_peers

WIDTHS, TOKENS = (16, 8, 4, 2, 1), (4, 8, 16, 32)
FLAGS = ("avx2", "f16c", "avx512f", "avx512bw", "avx512_vnni", "avx_vnni", "asimd", "asimddp", "i8mm", "sve")
RATIO, BANDWIDTH = 0.5, 0.4  # bars
CLIENTS, SECONDS = 8, 20


def instruction_sets() -> str:
    """Return the vector instruction sets that the operating system reports."""
    path = Path("/proc/cpuinfo")
    words = set(path.read_text().lower().split()) if path.exists() else set()
    names = ", ".join(flag for flag in FLAGS if flag in words) or "unknown"
    return f"{platform.machine()}: {names}; kernel {kernel()}, {processors()} threads"


def random_query(rng: np.random.Generator, tokens: int, dim: int) -> np.ndarray:
    query = rng.standard_normal((tokens, dim), np.float32)
    return query / np.linalg.norm(query, axis=1, keepdims=True)


def scanner_of(folder: Path, vectors: np.ndarray, lengths: np.ndarray, bits: int) -> Scanner:
    """Return a scanner of an index with these pages."""
    store = new_store(folder / f"{bits}.index", vectors.shape[1], bits)
    append_pages(store, vectors, lengths)
    return store.pages.newest_scanner()


def interleaved(
    runs: dict[str, Callable[[np.ndarray], object]], queries: list[np.ndarray]
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the median wall and CPU seconds of each run; the order rotates, and the first round is a warm-up."""
    wall: dict[str, list[float]] = {name: [] for name in runs}
    cpu: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs.items())
    for i, query in enumerate(queries):
        for name, run in order[i % len(order) :] + order[: i % len(order)]:
            began, cpu_began = time.perf_counter(), time.process_time()
            run(query)
            wall[name].append(time.perf_counter() - began)
            cpu[name].append(time.process_time() - cpu_began)
    medians = [{name: statistics.median(values[1:]) for name, values in kind.items()} for kind in (wall, cpu)]
    return medians[0], medians[1]


def compare(pages: int, dim: int, rounds: int, peers: list[str], token_counts: tuple[int, ...] = TOKENS) -> None:
    """Print the time of each width and peer, and the ratio of each width to the fastest peer."""
    vectors, lengths = random_pages(pages, dim, 40, 80)
    starts = np.concatenate(([0], lengths.cumsum())).astype(np.int64)
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scanners = {bits: scanner_of(folder, vectors, lengths, bits) for bits in WIDTHS}

        def ours(scanner: Scanner) -> Search:
            return lambda query: [row for row, _ in scanner.top_k([query], TOP, exact=True)[0]]

        runs = {f"{bits} bits": ours(scanner) for bits, scanner in scanners.items()}
        others = {peer: PEERS[peer][1](vectors, starts, folder) for peer in peers}
        print(f"\n{pages:,} pages, {len(vectors):,} vectors of {dim} dimensions; ms, and ratio to the fastest peer")
        print("| query vectors | time | " + " | ".join((*runs, *others)) + " |")
        print("|---:|---|" + "---:|" * (len(runs) + len(others)))
        for tokens in token_counts:
            queries = [random_query(rng, tokens, dim) for _ in range(rounds + 1)]
            for kind, medians in zip(("wall", "CPU"), interleaved({**runs, **others}, queries), strict=True):
                fastest = min(medians[peer] for peer in others)
                cells = [f"{1000 * medians[run]:.2f} ({medians[run] / fastest:.2f}x)" for run in runs]
                cells += [f"{1000 * medians[peer]:.1f}" for peer in others]
                missed = [run for run in runs if medians[run] > RATIO * fastest]
                bar = f"bar <= {RATIO}x: " + (f"missed at {', '.join(missed)}" if missed else "met")
                print(f"| {tokens} | {kind} | " + " | ".join(cells) + f" | {bar}", flush=True)


def copy_speed(array: np.ndarray) -> float:
    """Return the bytes per second of a plain copy with as many threads as the kernels."""
    target, best = np.empty_like(array), float("inf")
    for _ in range(7):
        parts = np.array_split(np.arange(0, len(array) + 1), processors())
        threads = [
            threading.Thread(target=np.copyto, args=(target[p[0] : p[-1] + 1], array[p[0] : p[-1] + 1])) for p in parts
        ]
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, time.perf_counter() - began)
    return array.nbytes / best


def bandwidth(pages: int, rounds: int) -> None:
    """Print the bytes of codes scanned per second relative to a copy of the same bytes."""
    vectors, lengths = random_pages(pages, 128, 40, 80)
    starts = np.concatenate(([0], lengths.cumsum())).astype(np.int64)
    rows, rng = np.arange(pages), np.random.default_rng(2)
    print(f"\nshare of the copy bandwidth, %, {pages:,} pages (bar: {BANDWIDTH:.0%} at 16 bits up to 16 vectors)")
    print("| bits | copy, GB/s | " + " | ".join(f"{tokens} query vectors" for tokens in TOKENS) + " |")
    print("|---:|---:|" + "---:|" * len(TOKENS))
    for bits in WIDTHS:
        coding = Coding(128, bits)
        codes, scales = coding.encode(vectors)
        copied, cells = copy_speed(codes), []
        for count in TOKENS:
            best = float("inf")
            for _ in range(rounds):
                tokens = Tokens.of([random_query(rng, count, 128)], coding)
                began = time.perf_counter()
                maxsim(coding, codes, scales, starts, rows, tokens)
                best = min(best, time.perf_counter() - began)
            copied = max(copied, copy_speed(codes))
            cells.append(codes.nbytes / best)
        shares = " | ".join(f"{100 * cell / copied:.0f}" for cell in cells)
        print(f"| {bits} | {copied / 1e9:.1f} | {shares} |", flush=True)


def exact_ranking(scanner_case: tuple[Coding, np.ndarray, np.ndarray, np.ndarray], query: np.ndarray) -> np.ndarray:
    """Return MaxSim scores of the stored codes in float64."""
    coding, codes, scales, starts = scanner_case
    levels = coding.unpack(codes).astype(np.float64)
    vectors = levels if coding.is_float else levels * scales[:, None].astype(np.float64)
    products = vectors @ coding.rotate_queries(query).astype(np.float64).T
    scores = np.full(len(starts) - 1, -np.inf)
    filled = np.flatnonzero(np.diff(starts))
    scores[filled] = np.maximum.reduceat(products, starts[filled], axis=0).sum(1)
    return scores


def ranking(cases: int, dims: tuple[int, ...]) -> None:
    """Compare rankings with float64 MaxSim of the stored codes: ragged and empty pages, 1 to 64 query vectors."""
    from anchorfold.retrieval.scan import best_positions

    print(f"\nrankings that differ from float64, of {cases:,} random cases (bar: 0); scores equal within 1e-5 are ties")
    for dim in dims:
        counts = []
        for bits in WIDTHS:
            rng, wrong, coding = np.random.default_rng(bits), 0, Coding(dim, bits)
            for _ in range(cases):
                lengths = rng.integers(0, 12, 60)
                starts = np.concatenate(([0], lengths.cumsum())).astype(np.int64)
                vectors = random_query(rng, int(starts[-1]), dim)
                codes, scales = coding.encode(vectors)
                query = random_query(rng, int(rng.integers(1, 65)), dim)
                tokens, exact = Tokens.of([query], coding), exact_ranking((coding, codes, scales, starts), query)
                scores, errors = maxsim(coding, codes, scales, starts, np.arange(60), tokens)
                chosen = best_positions(scores[0], TOP, float(errors[0]))
                last = np.sort(exact)[-TOP]
                wrong += not set(np.flatnonzero(exact > last + 1e-5 * abs(last))) <= set(chosen.tolist())
            counts.append(f"{bits} bits: {wrong}")
        print(f"{dim} dimensions: " + ", ".join(counts), flush=True)


def batches(pages: int, rounds: int) -> None:
    """Print the throughput of 64 queries of 8 vectors, one by one and as a batch."""
    vectors, lengths = random_pages(pages, 128, 40, 80)
    rng = np.random.default_rng(3)
    print(f"\nqueries per second, {pages:,} pages, 64 queries of 8 vectors")
    print("| bits | one by one | batch |\n|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as name:
        for bits in WIDTHS:
            scanner = scanner_of(Path(name), vectors, lengths, bits)
            queries = [random_query(rng, 8, 128) for _ in range(64)]

            def one_by_one(_: np.ndarray, scanner: Scanner = scanner, queries: list[np.ndarray] = queries) -> object:
                return [scanner.top_k([query], TOP) for query in queries]

            def batch(_: np.ndarray, scanner: Scanner = scanner, queries: list[np.ndarray] = queries) -> object:
                return scanner.top_k(queries, TOP)

            runs: dict[str, Callable[[np.ndarray], object]] = {"one": one_by_one, "batch": batch}
            medians, _ = interleaved(runs, queries[: rounds + 1])
            print(f"| {bits} | {64 / medians['one']:.0f} | {64 / medians['batch']:.0f} |", flush=True)


def server(pages: int) -> None:
    """Print the latency of the search endpoint for one client and for concurrent clients."""
    import httpx

    from anchorfold.backbones.nano.query import NanoQueryEncoder

    vectors, lengths = random_pages(pages, 128, 40, 80)
    questions = ["net revenue by region", "parental leave", "termination notice", "energy use of data centres"]
    with tempfile.TemporaryDirectory() as name:
        store = new_store(Path(name) / "my.index", 128, 4, fingerprint=NanoQueryEncoder().fingerprint)
        append_pages(store, vectors, lengths)
        command = [sys.executable, "-m", "anchorfold", "serve", str(store.folder), "--port", "0", "--no-browser"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            assert process.stdout is not None
            address = re.findall(r"http://\S+", process.stdout.readline())[0]

            def client(seconds: float, times: list[float]) -> None:
                with httpx.Client(timeout=60) as connection:
                    end = time.perf_counter() + seconds
                    while time.perf_counter() < end:
                        began = time.perf_counter()
                        question = questions[len(times) % len(questions)]
                        connection.get(f"{address}api/search", params={"q": question}).raise_for_status()
                        times.append(time.perf_counter() - began)

            client(3, [])
            alone: list[float] = []
            client(SECONDS / 2, alone)
            together: list[list[float]] = [[] for _ in range(CLIENTS)]
            threads = [threading.Thread(target=client, args=(SECONDS, times)) for times in together]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            process.terminate()
    every = np.array([seconds for times in together for seconds in times])
    median, p95 = statistics.median(alone), float(np.percentile(every, 95))
    print(f"\nserver, {pages:,} pages at 4 bits: 1 client {len(alone) / (SECONDS / 2):.0f} queries/s, median "
          f"{1000 * median:.1f} ms; {CLIENTS} clients {len(every) / SECONDS:.0f} queries/s, p95 {1000 * p95:.1f} ms = "
          f"{p95 / median:.1f}x (bar <= 5x) {'met' if p95 <= 5 * median else 'MISSED'}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("grid", "dimensions", "bandwidth", "ranking", "batches", "server")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--pages", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--peers", nargs="+", choices=tuple(PEERS), help="other libraries (default: those installed)")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--cases", type=int, default=1_000, help="random cases per width and dimension")
    arguments = parser.parse_args()
    peers = available_peers(arguments.peers)
    print(instruction_sets())
    print("not installed: " + (", ".join(peer for peer in PEERS if peer not in available_peers()) or "none"))
    if "grid" in arguments.parts:
        for pages in arguments.pages:
            compare(pages, 128, arguments.rounds, peers)
    if "dimensions" in arguments.parts:
        for dim, pages in ((320, 4_000), (640, 2_000), (3_072, 400)):
            compare(pages, dim, arguments.rounds, [peer for peer in peers if peer in ("NumPy", "torch")], (8, 16))
    if "bandwidth" in arguments.parts:
        bandwidth(10_000, arguments.rounds)
    if "ranking" in arguments.parts:
        ranking(arguments.cases, (128, 320, 640))
    if "batches" in arguments.parts:
        batches(10_000, 3)
    if "server" in arguments.parts:
        server(10_000)


if __name__ == "__main__":
    main()
