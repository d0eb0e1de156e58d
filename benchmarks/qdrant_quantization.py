"""Top 10 of Qdrant's quantizations compared with an exact search, in the real engine (`pip install qdrant-edge-py`).

    python -m benchmarks.qdrant_quantization my.index queries.txt --queries 60

The points and the quantization are those of `anchorfold export --format qdrant --quantization NAME`.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import qdrant_client
import qdrant_edge as edge

from anchorfold import Index
from anchorfold.exporters import to_qdrant
from anchorfold.exporters.sizing import QUANTIZATION_BITS

TOP, BATCH = 10, 50
RESCORE = edge.SearchParams(quantization=edge.QuantizationSearchParams(rescore=True, oversampling=2.0))


def edge_quantization(name: str | None) -> Any:
    """Return the configuration of the export for the engine."""
    config = to_qdrant._quantization_config(name)
    if config is None:
        return None
    if name == "scalar":
        return edge.ScalarQuantizationConfig(edge.ScalarType.Int8, config.scalar.quantile, config.scalar.always_ram)
    if name == "binary":
        return edge.BinaryQuantizationConfig(config.binary.always_ram)
    bits = getattr(edge.TurboQuantBitSize, config.turbo.bits.value.capitalize())
    return edge.TurboQuantQuantizationConfig(config.turbo.always_ram, bits)


def create_shard(folder: str, points: list[Any], dim: int, name: str | None) -> Any:
    """Store the points with a quantization and without HNSW graph."""
    vectors = edge.EdgeVectorParams(
        dim, edge.Distance.Dot, multivector_config=edge.MultiVectorConfig(edge.MultiVectorComparator.MaxSim),
        quantization_config=edge_quantization(name), hnsw_config=edge.HnswIndexConfig(0, 100, 10_000),
    )  # fmt: skip
    shard = edge.EdgeShard.create(folder, edge.EdgeConfig(vectors=vectors))
    for i in range(0, len(points), BATCH):
        batch = [edge.Point(point.id, np.asarray(point.vector).tolist()) for point in points[i : i + BATCH]]
        shard.update(edge.UpdateOperation.upsert_points(batch))
    shard.optimize()
    return shard


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("file", type=Path, help="file with one query per line")
    parser.add_argument("--queries", type=int, default=60)
    options = parser.parse_args()
    index = Index.open(options.index)
    client = qdrant_client.QdrantClient(":memory:")
    pages = index.export("qdrant", client, collection="pages")
    points, _ = client.scroll("pages", limit=pages, with_vectors=True)
    keys = {point.id: (point.payload["document"], point.payload["page"]) for point in points}
    queries = index.encode_queries(options.file.read_text("utf-8").splitlines()[: options.queries])
    expected = [[(h.document, h.page) for h in hits] for hits in index.search_vectors(queries, TOP, exact=True)]
    print(f"{pages} pages, {len(queries)} queries\n")
    print("| quantization | top 10, % | first, % | rescored: top 10, % | first, % |\n|---|---:|---:|---:|---:|")
    for name in (None, *QUANTIZATION_BITS):
        cells = []
        with tempfile.TemporaryDirectory() as folder:
            shard = create_shard(folder, points, index.settings.dim, name)
            for params in (None, RESCORE):
                same, first = [], []
                for query, want in zip(queries, expected, strict=True):
                    nearest = edge.Query.Nearest(np.asarray(query).tolist())
                    results = shard.query(edge.QueryRequest(TOP, query=nearest, params=params))
                    found = [keys[str(point.id)] for point in results]
                    same.append(len(set(found) & set(want)) / len(want))
                    first.append(found[:1] == want[:1])
                cells += [f"{100 * np.mean(same):.1f}", f"{100 * np.mean(first):.1f}"]
        print(f"| {name or '(none)'} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
