"""How fast a query is answered: ours against what people use, interleaved in one run on the same ragged pages.

    python -m benchmarks.search                                       # 10,000 pages of 40-115 vectors, two minutes
    python -m benchmarks.search --pages 2000 --dim 3072               # Nemotron's dimension
    python -m benchmarks.search --without-vnni                        # as on most laptops: torch's plain int8 product
    python -m benchmarks.search --agreement my.index queries.jsonl    # does the fast path find the same pages?

Times are medians over interleaved rounds of one query of 16 vectors; compare them only within one run.
"""

from __future__ import annotations

import argparse
import json
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
from anchorfold.index.store.flat import FlatIndex
from anchorfold.index.store.schema import IndexSettings, PageRow

from anchorfold.index import Index
from anchorfold.index.scan import Scanner
from anchorfold.index.store.table import PageTable
from anchorfold.page import EncodedPage, PatchGrid

TOKENS, TOP, CHUNK = 16, 10, 200
BARS = (
    ("ours", "ours exact", "<=", 1.05),
    ("ours exact", "bare chunked torch", "<=", 1.2),
    ("LanceDB multivector", "ours exact", ">=", 5.0),
    ("ours exact", "ours fast", ">=", 2.0),
    ("ours exact", "ours exact, full index", "<=", 0.15),
)
WAYS = {"exact": "exact", "integer": "int8 as integers", "widened": "int8 as floats"}
X86 = ("avx2", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "avx_vnni", "avx512_vnni", "amx_bf16", "amx_int8")
ARM = ("asimd", "advsimd", "asimdhp", "fp16", "asimddp", "dotprod", "bf16", "i8mm", "sve")
FIRST_QUERY = """
import json, sys, time
from anchorfold.index import Index
import anchorfold.backbones.nano.retriever, transformers
transformers.utils.logging.disable_progress_bar()
began = time.perf_counter()
hits = Index.open(sys.argv[1]).search("net revenue by region")
print(json.dumps([time.perf_counter() - began, len(hits)]))
"""


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


def ragged_pages(pages: int, dim: int, low: int, high: int, seed: int = 0) -> FlatIndex:
    """Random unit vectors as a flat index, without going through a table."""
    generator = torch.Generator().manual_seed(seed)
    lengths = np.sort(np.random.default_rng(seed).integers(low, high + 1, pages))
    total = int(lengths.sum())
    vectors = np.empty((total, dim), np.float16)
    for start in range(0, total, 65536):
        some = torch.randn(min(65536, total - start), dim, generator=generator)
        vectors[start : start + 65536] = torch.nn.functional.normalize(some, dim=1).half().numpy()
    scale = 6.0 / dim**0.5 / 127
    codes = np.empty((total, dim), np.int8)
    for start in range(0, total, 65536):
        part = np.rint(vectors[start : start + 65536].astype(np.float32) / scale).clip(-127, 127)
        codes[start : start + 65536] = part.astype(np.int8)
    return FlatIndex(1, vectors, codes, lengths, scale, pa.table({"page": pa.array(range(pages), pa.int32())}))


def choice(scanner: Scanner) -> str:
    """How the scanner searches when it may choose, and the times that made it choose so."""
    trial = scanner.trial()
    times = {WAYS["exact"]: trial.exact, WAYS["integer"]: trial.integer, WAYS["widened"]: trial.widened}
    listed = ", ".join(f"{n} {'wrong' if s == float('inf') else f'{1e9 * s:.2f} ns'}" for n, s in times.items())
    return f"chosen: {WAYS[scanner.way(TOP)]} (a number takes {listed}; a rescored page {1e6 * trial.page:.0f} us more)"


def contestants(scanner: Scanner, folder: Path, with_qdrant: bool) -> dict[str, Callable[[torch.Tensor], list[int]]]:
    """Each answers a query `(tokens, d)` with its best pages."""
    flat = scanner.flat
    starts = np.concatenate(([0], flat.lengths.cumsum()))
    stored = torch.from_numpy(flat.vectors)
    wide = stored.float()
    lengths = torch.from_numpy(flat.lengths)
    pages = [wide[a:b] for a, b in pairwise(starts)]

    def bare(query: torch.Tensor, vectors: torch.Tensor) -> list[int]:
        scores = []
        for first in range(0, len(flat), CHUNK):
            last = min(first + CHUNK, len(flat))
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

    table = lance_table(flat, starts, folder)

    def lance(query: torch.Tensor) -> list[int]:
        found = table.search(query.numpy().astype(np.float16), vector_column_name="vectors").distance_type("dot")
        return found.select(["page", "_distance"]).limit(TOP).to_arrow()["page"].to_pylist()

    found: dict[str, Callable[[torch.Tensor], list[int]]] = {
        "ours": lambda q: [p for p, _ in scanner.top([q], TOP)[0]],
        "ours exact": lambda q: [p for p, _ in scanner.top([q], TOP, exact=True)[0]],
        "ours fast": lambda q: [p for p, _ in scanner.top([q], TOP, exact=False)[0]],
        "bare chunked torch": lambda q: bare(q, stored),
        "bare chunked torch, float32 copy": lambda q: bare(q, wide),
        "plain numpy": plain_numpy,
        "torch padding + einsum": padded,
        "LanceDB multivector": lance,
    }
    if with_qdrant:
        found["qdrant-client local"] = qdrant(pages)
    return found


def lance_table(flat: FlatIndex, starts: np.ndarray, folder: Path):  # type: ignore[no-untyped-def]
    """The same pages in a LanceDB table of their own."""
    kind = pa.list_(pa.list_(pa.float16(), flat.vectors.shape[1]))
    table = lancedb.connect(folder / "lance").create_table(
        "pages", schema=pa.schema([("page", pa.int32()), ("vectors", kind)])
    )
    for first in range(0, len(flat), 1000):
        last = min(first + 1000, len(flat))
        flat_values = pa.array(flat.vectors[starts[first] : starts[last]].reshape(-1))
        inner = pa.FixedSizeListArray.from_arrays(flat_values, type=kind.value_type)
        offsets = pa.array((starts[first : last + 1] - starts[first]).astype(np.int32))
        vectors = pa.ListArray.from_arrays(offsets, inner, type=kind)
        table.add(pa.table({"page": pa.array(range(first, last), pa.int32()), "vectors": vectors}))
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


def compare(runs: dict[str, Callable[[torch.Tensor], list[int]]], dim: int, rounds: int) -> dict[str, float]:
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
            if "full index" in name:
                continue
            expected = expected or answer
            assert set(answer[:5]) <= set(expected), f"{name} disagrees"
    return {name: statistics.median(s) for name, s in seconds.items()}


def first_query(pages: int, folder: Path) -> tuple[float, float]:
    """Seconds to open an index of synthetic pages and answer, without and with the search cache; fresh processes."""
    import anchorfold

    model = anchorfold.load("nano")
    settings = IndexSettings(model=model.name, fingerprint=model.fingerprint, dim=model.dim, method="anchorfold",
                             options={"ratio": 0.05}, window=model.settings.window, steps=3)  # fmt: skip
    table = PageTable.create(folder / "first.index", settings)
    rng = np.random.default_rng(1)
    grid = PatchGrid.single(40, 40)
    for first in range(0, pages, 500):
        rows = []
        for number in range(first, min(first + 500, pages)):
            m = int(rng.integers(40, 116))
            vectors = torch.nn.functional.normalize(
                torch.from_numpy(rng.normal(size=(m, model.dim)).astype(np.float32)), dim=1
            )
            encoded = EncodedPage(
                vectors, torch.arange(m), torch.from_numpy(rng.integers(0, m, 1600)), torch.rand(1600), grid
            )
            source = f"/d/{number // 50}.pdf"
            rows.append(PageRow(source, source, number % 50 + 1, 50, "d", 1, 1, True, encoded, rng.bytes(8000)))
        table.append(rows)
    table.tidy()
    times = []
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", FIRST_QUERY, str(folder / "first.index")], capture_output=True, text=True, check=True)  # fmt: skip  # noqa: E501
        times.append(json.loads(done.stdout.splitlines()[-1])[0])
    return times[0], times[1]


def agreement(path: Path, queries: Path) -> None:
    """Share of queries whose first ten pages are the same by the fast and by the exact path."""
    index = Index.open(path)
    texts = [json.loads(line)["text"] for line in queries.read_text().splitlines()]
    encoded = index.model.encode_queries(texts)
    same = 0
    for start in range(0, len(encoded), 64):
        some = encoded[start : start + 64]
        fast, exact = (index.search_vectors(some, TOP, exact=e) for e in (False, True))
        for a, b in zip(fast, exact, strict=True):
            same += [(h.source, h.page) for h in a] == [(h.source, h.page) for h in b]
    print(f"{path}: {index.info().pages:,} pages, {len(texts):,} queries: the fast path's top {TOP} equals "
          f"the exact one in {100 * same / len(texts):.2f} % (bar: 99.9 %)")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--without-vnni", action="store_true", help="int8 products as torch has them without VNNI")
    parser.add_argument("--agreement", nargs=2, type=Path, metavar=("INDEX", "QUERIES"))
    arguments = parser.parse_args()
    if arguments.agreement:
        agreement(*arguments.agreement)
        return
    if arguments.without_vnni:
        torch.backends.mkldnn.set_flags(False)  # torch asks oneDNN for int8 products only if there is VNNI
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        flat = ragged_pages(arguments.pages, arguments.dim, 40, 115)
        scanner = Scanner(flat)
        print(processor())
        print(choice(scanner))
        runs = contestants(scanner, folder, with_qdrant=arguments.dim <= 128)
        full = Scanner(ragged_pages(arguments.pages // (1 if arguments.dim <= 128 else 10), arguments.dim, 400, 1150))
        factor = arguments.pages / len(full.flat)
        runs["ours exact, full index"] = lambda q: [p for p, _ in full.top([q], TOP, exact=True)[0]]
        found = compare(runs, arguments.dim, arguments.rounds)
        found["ours exact, full index"] *= factor
        print(f"{arguments.pages:,} pages, {int(flat.lengths.sum()):,} vectors of {arguments.dim} dimensions, "
              f"{torch.get_num_threads()} threads, one query of {TOKENS} vectors, median of "
              f"{arguments.rounds}")  # fmt: skip
        for who, seconds in found.items():
            print(f"{who:38} {1000 * seconds:9.1f} ms   {seconds / found['ours exact']:7.2f} x ours exact")
        for left, right, sign, bar in BARS:
            ratio = found[left] / found[right]
            if right == "ours fast" and scanner.trial().codes == "widened":
                print(f"{left} / {right}: {ratio:.3f} (no bar on a processor without quick int8 products)")
                continue
            met = ratio <= bar if sign == "<=" else ratio >= bar
            print(f"{left} / {right}: {ratio:.3f} (bar {sign} {bar}) {'met' if met else 'MISSED'}")
        if arguments.dim <= 128:
            without, with_cache = first_query(arguments.pages, folder)
            print(f"open {arguments.pages:,} pages and answer the first query: {with_cache:.2f} s, or {without:.2f} s "
                  f"when the search cache must be built (bar 2 s) {'met' if with_cache < 2 else 'MISSED'}")  # fmt: skip


if __name__ == "__main__":
    main()
