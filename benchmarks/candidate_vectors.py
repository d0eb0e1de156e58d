"""Recall of candidates by one vector per page: mean pooling compared with fixed-dimensional encodings (MUVERA).

    python -m benchmarks.candidate_vectors my.index --queries queries.jsonl

The first column is the share of the pages that are candidates; the others are the share of the ten best pages by
exhaustive MaxSim that are among them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from anchorfold import Index
from anchorfold.retrieval.candidate_vectors import candidate_query, candidate_vector
from anchorfold.storage.protocol import PageCollection

TOP = 10
SHARES = (0.02, 0.05, 0.1, 0.2)


class FixedDimensionalEncoding:
    """MUVERA: sums of query tokens and means of page vectors per partition of space, projected, repeated.

    Empty partitions of a page take its vector that is nearest in Hamming distance, as in the paper.
    """

    def __init__(self, dim: int, planes: int, projected: int, repetitions: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.planes, self.projected = planes, projected
        self.normals = rng.normal(size=(repetitions, dim, planes)).astype(np.float32)
        self.projections = rng.choice([-1.0, 1.0], (repetitions, dim, projected)).astype(np.float32) / projected**0.5

    @property
    def dim(self) -> int:
        return len(self.normals) * (1 << self.planes) * self.projected

    def _blocks(self, vectors: np.ndarray, is_page: bool) -> np.ndarray:
        powers, count = 1 << np.arange(self.planes), 1 << self.planes
        codes = np.arange(count)[:, None] >> np.arange(self.planes) & 1
        blocks = []
        for normals, projection in zip(self.normals, self.projections, strict=True):
            bits = (vectors @ normals > 0).astype(np.int64)
            parts, small = bits @ powers, vectors @ projection
            block = np.zeros((count, self.projected), np.float32)
            np.add.at(block, parts, small)
            if is_page:
                members = np.bincount(parts, minlength=count)
                block[members > 0] /= members[members > 0, None]
                for empty in np.flatnonzero(members == 0):
                    block[empty] = small[(bits != codes[empty]).sum(1).argmin()]
            blocks.append(block.ravel())
        return np.concatenate(blocks)

    def page(self, vectors: np.ndarray) -> np.ndarray:
        return self._blocks(vectors, True)

    def query(self, tokens: np.ndarray) -> np.ndarray:
        return self._blocks(tokens, False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", nargs="+", help="Index directories or URLs; their pages are searched together.")
    parser.add_argument("--queries", type=Path, required=True, help='JSON lines with "text".')
    parser.add_argument("--limit", type=int, default=300, help="Number of queries.")
    arguments = parser.parse_args()
    pages: list[np.ndarray] = []

    def read(collection: PageCollection) -> None:
        pages.extend(page.vectors for page in collection.pages())

    indexes = [Index.open(location) for location in arguments.index]
    for index in indexes:
        index.store.export_pages(read)
    lines = arguments.queries.read_text("utf-8").splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    step = max(1, len(texts) // arguments.limit)
    queries = [np.asarray(q, np.float32) for q in indexes[0].encode_queries(texts[::step][: arguments.limit]) if len(q)]
    every = np.concatenate(pages)
    starts = np.concatenate(([0], np.cumsum([len(page) for page in pages])))
    best = []
    for query in queries:
        scores = np.maximum.reduceat(every @ query.T, starts[:-1], axis=0).sum(1)
        best.append(np.argsort(-scores, kind="stable")[:TOP])
    dim = every.shape[1]
    kinds = {"mean": (dim, candidate_vector, candidate_query)}
    for planes, projected, repetitions in ((3, 16, 10), (4, 16, 10), (5, 8, 15)):
        encoding = FixedDimensionalEncoding(dim, planes, projected, repetitions)
        kinds[f"FDE {encoding.dim:,}"] = (encoding.dim, encoding.page, encoding.query)
    print(f"{len(pages):,} pages, {len(queries):,} queries, {np.diff(starts).mean():.0f} vectors per page")
    print("candidate vector | dimensions | " + " | ".join(f"{share:.0%}" for share in SHARES))
    for name, (size, of_page, of_query) in kinds.items():
        matrix = np.stack([of_page(page) for page in pages])
        recall = np.zeros(len(SHARES))
        for query, top in zip(queries, best, strict=True):
            order = np.argsort(-(matrix @ of_query(query)), kind="stable")
            recall += [np.isin(top, order[: int(share * len(pages))]).mean() for share in SHARES]
        print(f"{name} | {size:,} | " + " | ".join(f"{value:.3f}" for value in recall / len(queries)))


if __name__ == "__main__":
    main()
