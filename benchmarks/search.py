"""How fast a query is answered: ours against what people use, interleaved in one run on the same ragged pages.

    python -m benchmarks.search                                       # 10,000 pages of 40-115 vectors, two minutes
    python -m benchmarks.search --pages 2000 --dim 3072               # Nemotron's dimension
    python -m benchmarks.search --without-vnni                        # as on most laptops: torch's plain int8 product

Does the fast path of a large index find the same pages? `anchorfold bench agreement` tells, on one's own.
Times are medians over interleaved rounds of one query of 16 vectors; compare them only within one run.
"""

from __future__ import annotations

import argparse
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import lancedb
import numpy as np
import pyarrow as pa
import torch

from anchorfold.index.coding import Coding
from anchorfold.index.products import integers_are_quick
from anchorfold.index.scan import Scanner
from benchmarks.invented_index import append_pages, new_store, random_pages

TOKENS, TOP, CHUNK = 16, 10, 200
BARS = (
    ("ours exact", "bare chunked torch", "<=", 0.6),
    ("LanceDB multivector", "ours exact", ">=", 5.0),
    ("ours exact", "ours exact, full index", "<=", 0.15),
)
WIDTHS = (8, 4, 2, 1)
X86 = ("avx2", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "avx_vnni", "avx512_vnni", "amx_bf16", "amx_int8")
ARM = ("asimd", "advsimd", "asimdhp", "fp16", "asimddp", "dotprod", "bf16", "i8mm", "sve")


def processor() -> str:
    """Which instruction sets for products the processor has, as far as the system tells."""
    described = ""
    if Path("/proc/cpuinfo").exists():
        described = Path("/proc/cpuinfo").read_text()
    elif sys.platform == "darwin":
        command = ["sysctl", "machdep.cpu", "hw.optional"]
        described = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    names = ", ".join(instructions_in(described)) or "unknown"
    return f"{platform.machine()}, {names}; torch uses {torch.backends.cpu.get_cpu_capability()}"


def instructions_in(described: str) -> list[str]:
    """Those that /proc/cpuinfo lists, or `sysctl` on macOS, which also lists what is not there, with a 0."""
    present = [line for line in described.lower().splitlines() if not line.endswith(": 0")]
    words = set(re.findall(r"\w+", "\n".join(present).replace("feat_", "")))
    return [name for name in (*X86, *ARM) if name in words]


def scanner_of(folder: Path, vectors: np.ndarray, lengths: np.ndarray, bits: int) -> Scanner:
    """A scanner of an index with these pages."""
    store = new_store(folder / f"{bits}-{len(lengths)}-{int(lengths.sum())}.index", vectors.shape[1], bits)
    append_pages(store, vectors, lengths)
    return store.pages.with_scanner(lambda _, scanner: scanner)


def contestants(
    vectors: np.ndarray, lengths_of_pages: np.ndarray, folder: Path, with_qdrant: bool
) -> dict[str, Callable[[torch.Tensor], list[int]]]:
    """Each answers a query `(tokens, d)` with its best pages."""
    starts = np.concatenate(([0], lengths_of_pages.cumsum()))
    stored = torch.from_numpy(vectors.astype(np.float16))
    wide = stored.float()
    lengths = torch.from_numpy(lengths_of_pages)
    pages = [wide[a:b] for a, b in pairwise(starts)]

    def ours(scanner: Scanner, exact: bool | None) -> Callable[[torch.Tensor], list[int]]:
        return lambda q: [p for p, _ in scanner.top([q], TOP, exact=exact)[0]]

    def bare(query: torch.Tensor, vectors: torch.Tensor) -> list[int]:
        scores = []
        for first in range(0, len(pages), CHUNK):
            last = min(first + CHUNK, len(pages))
            similarity = vectors[starts[first] : starts[last]].float() @ query.T
            best = torch.segment_reduce(similarity, "max", lengths=lengths[first:last], axis=0)
            scores.append(best.sum(1))
        return torch.cat(scores).topk(TOP).indices.tolist()

    def plain_numpy(query: torch.Tensor) -> list[int]:
        best = np.maximum.reduceat(wide.numpy() @ query.numpy().T, starts[:-1], axis=0)
        return np.argsort(-best.sum(1))[:TOP].tolist()

    def padded(query: torch.Tensor) -> list[int]:
        scores = []
        for first in range(0, len(pages), 128):
            block = torch.nn.utils.rnn.pad_sequence(pages[first : first + 128], batch_first=True)
            scores.append(torch.einsum("nd,csd->cns", query, block).amax(2).sum(1))
        return torch.cat(scores).topk(TOP).indices.tolist()

    table = lance_table(stored.numpy(), starts, folder)

    def lance(query: torch.Tensor) -> list[int]:
        hits = table.search(query.numpy().astype(np.float16), vector_column_name="vectors").distance_type("dot")
        return hits.select(["page", "_distance"]).limit(TOP).to_arrow()["page"].to_pylist()

    runs: dict[str, Callable[[torch.Tensor], list[int]]] = {
        "ours exact": ours(scanner_of(folder, vectors, lengths_of_pages, 16), True),
        **{f"ours, {bits} bits": ours(scanner_of(folder, vectors, lengths_of_pages, bits), None) for bits in WIDTHS},
        "bare chunked torch": lambda q: bare(q, stored),
        "bare chunked torch, float32 copy": lambda q: bare(q, wide),
        "plain numpy": plain_numpy,
        "torch padding + einsum": padded,
        "LanceDB multivector": lance,
    }
    if with_qdrant:
        runs["qdrant-client local"] = qdrant(pages)
    return runs


def lance_table(vectors: np.ndarray, starts: np.ndarray, folder: Path):
    """The same pages in a LanceDB table of their own."""
    kind = pa.list_(pa.list_(pa.float16(), vectors.shape[1]))
    table = lancedb.connect(folder / "lance").create_table(
        "pages", schema=pa.schema([("page", pa.int32()), ("vectors", kind)])
    )
    for first in range(0, len(starts) - 1, 1000):
        last = min(first + 1000, len(starts) - 1)
        flat_values = pa.array(vectors[starts[first] : starts[last]].reshape(-1))
        inner = pa.FixedSizeListArray.from_arrays(flat_values, type=kind.value_type)
        offsets = pa.array((starts[first : last + 1] - starts[first]).astype(np.int32))
        column = pa.ListArray.from_arrays(offsets, inner, type=kind)
        table.add(pa.table({"page": pa.array(range(first, last), pa.int32()), "vectors": column}))
    return table


def qdrant(pages: list[torch.Tensor]) -> Callable[[torch.Tensor], list[int]]:
    """qdrant-client's local engine, which is made for trying out."""
    from qdrant_client import QdrantClient, models

    client = QdrantClient(":memory:")
    client.create_collection(
        "pages",
        vectors_config=models.VectorParams(
            size=pages[0].shape[1], distance=models.Distance.DOT,
            multivector_config=models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM),
        ),
    )  # fmt: skip
    for first in range(0, len(pages), 50):
        numbered = range(first, min(first + 50, len(pages)))
        client.upsert("pages", [models.PointStruct(id=i, vector=pages[i].tolist()) for i in numbered])
    return lambda q: [p.id for p in client.query_points("pages", query=q.tolist(), limit=TOP).points]


def interleaved_seconds(
    runs: dict[str, Callable[[torch.Tensor], list[int]]], dim: int, rounds: int
) -> dict[str, float]:
    """Median seconds of each, interleaved; all that look at the same pages must agree."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs.items())
    for i in range(rounds + 1):
        query = torch.nn.functional.normalize(
            torch.randn(TOKENS, dim, generator=torch.Generator().manual_seed(i)), dim=1
        )
        expected: list[int] | None = None
        # The order turns from round to round: who comes after the largest scan finds the caches empty.
        for name, run in order[i % len(order) :] + order[: i % len(order)]:
            began = time.perf_counter()
            answer = run(query)
            if i:  # the first round warms up
                seconds[name].append(time.perf_counter() - began)
            if "full index" in name or "bits" in name:  # fewer bits of random vectors rank otherwise
                continue
            expected = expected or answer
            assert set(answer[:5]) <= set(expected), f"{name} disagrees"
    return {name: statistics.median(s) for name, s in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--without-vnni", action="store_true", help="int8 products as torch has them without VNNI")
    arguments = parser.parse_args()
    if arguments.without_vnni:
        torch.backends.mkldnn.set_flags(False)  # torch asks oneDNN for int8 products only if there is VNNI
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vectors, lengths = random_pages(arguments.pages, arguments.dim, 40, 115)
        print(processor())
        runs = contestants(vectors, lengths, folder, with_qdrant=arguments.dim <= 128)
        factor = 1 if arguments.dim <= 128 else 10
        full = scanner_of(folder, *random_pages(arguments.pages // factor, arguments.dim, 400, 1150), 16)
        runs["ours exact, full index"] = lambda q: [p for p, _ in full.top([q], TOP, exact=True)[0]]
        seconds = interleaved_seconds(runs, arguments.dim, arguments.rounds)
        seconds["ours exact, full index"] *= factor
        quick = [bits for bits in WIDTHS if integers_are_quick(Coding(arguments.dim, bits))]
        print(f"{arguments.pages:,} pages, {int(lengths.sum()):,} vectors of {arguments.dim} dimensions, "
              f"{torch.get_num_threads()} threads, one query of {TOKENS} vectors, median of {arguments.rounds}; "
              f"multiplied as integers: {quick or 'none'} bits")  # fmt: skip
        for engine, time_of in seconds.items():
            print(f"{engine:38} {1000 * time_of:9.1f} ms   {time_of / seconds['ours exact']:7.2f} x ours exact")
        for left, right, sign, bar in BARS:
            ratio = seconds[left] / seconds[right]
            met = ratio <= bar if sign == "<=" else ratio >= bar
            print(f"{left} / {right}: {ratio:.3f} (bar {sign} {bar}) {'met' if met else 'MISSED'}")


if __name__ == "__main__":
    main()
