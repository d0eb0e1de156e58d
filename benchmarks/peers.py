"""Exact MaxSim search with other libraries on the same pages; libraries that are not installed are left out."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np

TOP = 10
NEAREST = 2_000  # vectors per token that faiss returns; other pages score 0 for the token
Search = Callable[[np.ndarray], list[int]]  # of a query (tokens, d): the best pages


def numpy_search(vectors: np.ndarray, starts: np.ndarray, folder: Path) -> Search:
    def search(query: np.ndarray) -> list[int]:
        best = np.maximum.reduceat(vectors @ query.T, starts[:-1], axis=0).sum(1)
        return np.argsort(-best)[:TOP].tolist()

    return search


def torch_search(vectors: np.ndarray, starts: np.ndarray, folder: Path) -> Search:
    import torch

    stored, lengths = torch.from_numpy(vectors), torch.from_numpy(np.diff(starts))

    def search(query: np.ndarray) -> list[int]:
        products = stored @ torch.from_numpy(query).T
        return torch.segment_reduce(products, "max", lengths=lengths, axis=0).sum(1).topk(TOP).indices.tolist()

    return search


def numkong_search(vectors: np.ndarray, starts: np.ndarray, folder: Path) -> Search:
    """Search with packed float32 matrices on two threads; scores are sums of angular distances."""
    import numkong

    pages = [numkong.maxsim_pack(vectors[a:b]) for a, b in pairwise(starts.tolist())]
    parts = [pages[: len(pages) // 2], pages[len(pages) // 2 :]]
    pool = ThreadPoolExecutor(2)

    def search(query: np.ndarray) -> list[int]:
        packed = numkong.maxsim_pack(query)
        halves = pool.map(lambda part: [numkong.maxsim_packed(packed, page) for page in part], parts)
        return np.argsort(np.concatenate([np.array(half) for half in halves]))[:TOP].tolist()

    return search


def faiss_search(vectors: np.ndarray, starts: np.ndarray, folder: Path) -> Search:
    import faiss

    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))

    def search(query: np.ndarray) -> list[int]:
        scores, numbers = index.search(np.ascontiguousarray(query), min(NEAREST, len(owner)))
        totals = np.zeros(len(starts) - 1, np.float32)
        for values, pages in zip(scores, owner[numbers], strict=True):
            gain = np.zeros_like(totals)
            np.maximum.at(gain, pages, values - values[-1])
            totals += gain
        return np.argsort(-totals)[:TOP].tolist()

    return search


def lance_search(vectors: np.ndarray, starts: np.ndarray, folder: Path) -> Search:
    import lancedb
    import pyarrow as pa

    kind = pa.list_(pa.list_(pa.float16(), vectors.shape[1]))
    schema = pa.schema([("page", pa.int32()), ("vectors", kind)])
    table = lancedb.connect(folder / "lance").create_table("pages", schema=schema)
    for first in range(0, len(starts) - 1, 1000):
        last = min(first + 1000, len(starts) - 1)
        values = pa.array(vectors[starts[first] : starts[last]].astype(np.float16).reshape(-1))
        inner = pa.FixedSizeListArray.from_arrays(values, type=kind.value_type)
        offsets = pa.array((starts[first : last + 1] - starts[first]).astype(np.int32))
        column = pa.ListArray.from_arrays(offsets, inner, type=kind)
        table.add(pa.table({"page": pa.array(range(first, last), pa.int32()), "vectors": column}))

    def search(query: np.ndarray) -> list[int]:
        nearest = table.search(query.astype(np.float16), vector_column_name="vectors").distance_type("dot")
        return nearest.select(["page", "_distance"]).limit(TOP).to_arrow()["page"].to_pylist()

    return search


def qdrant_search(vectors: np.ndarray, starts: np.ndarray, folder: Path) -> Search:
    """Search exactly with the engine of Qdrant in this process."""
    import qdrant_edge as edge

    several = edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim)
    parameters = edge.EdgeVectorParams(vectors.shape[1], edge.Distance.Dot, multivector_config=several)
    (folder / "qdrant").mkdir()
    shard = edge.EdgeShard.create(str(folder / "qdrant"), edge.EdgeConfig(vectors=parameters))
    for first in range(0, len(starts) - 1, 200):
        numbers = range(first, min(first + 200, len(starts) - 1))
        points = [edge.Point(i, vectors[starts[i] : starts[i + 1]].tolist()) for i in numbers]
        shard.update(edge.UpdateOperation.upsert_points(points))

    def search(query: np.ndarray) -> list[int]:
        parameters = edge.SearchParams(exact=True)
        request = edge.QueryRequest(TOP, query=edge.Query.Nearest(query.tolist()), params=parameters)
        return [int(point.id) for point in shard.query(request)]

    return search


PEERS: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray, Path], Search]]] = {
    "NumPy": ("numpy", numpy_search),
    "torch": ("torch", torch_search),
    "NumKong": ("numkong", numkong_search),
    "faiss flat": ("faiss", faiss_search),
    "qdrant-edge": ("qdrant_edge", qdrant_search),
    "LanceDB": ("lancedb", lance_search),
}


def available_peers(names: list[str] | None = None) -> list[str]:
    """Return the peers whose libraries are installed."""
    return [
        name
        for name, (module, _) in PEERS.items()
        if (names is None or name in names) and importlib.util.find_spec(module)
    ]
