"""Recall of candidates that a database can select: one vector per page, and posting lists of centroids.

    python -m benchmarks.candidate_vectors my.index --queries queries.jsonl
    python -m benchmarks.candidate_vectors my.index --word-pages 10000
    python -m benchmarks.candidate_vectors --prepared DIR/100000 --encodings 1

Compared are the mean of a page's vectors, fixed-dimensional encodings (MUVERA, fastembed's implementation), posting
lists (used in directories and PostgreSQL), and a sparse vector per page of its nearest centroids, whose inner product
adds the gains of all centroids of a page, where posting lists take the best one per token. Each row has the share of
the ten best pages by exhaustive MaxSim that are candidates, by the share of all pages that are candidates. With
--word-pages, pages and queries are synthetic (`benchmarks.word_pages`), with the noise of the index's vectors.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from anchorfold import Index
from anchorfold.retrieval.candidate_vectors import candidate_query, candidate_vector
from anchorfold.retrieval.centroids import SAMPLE, Nearest, centroid_count, find_centroids, unit
from anchorfold.retrieval.fetched_pages import ListedPages
from anchorfold.storage.protocol import PageCollection
from benchmarks.databases import Pages as StoredPages
from benchmarks.word_pages import WordPages

TOP = 10
SHARES = (0.01, 0.02, 0.04, 0.1, 0.2)
CHUNK = 5_000  # pages in memory at a time as float32
ENCODINGS = ((4, 8, 10), (4, 16, 20), (5, 16, 20), (5, 32, 40))  # hyperplanes, projected dimensions, repetitions
Pages = tuple[np.ndarray, np.ndarray]  # vectors `(V, d)`, and the first vector of each page
Ranker = Callable[[np.ndarray], np.ndarray]  # from the tokens of a query to a score per page


def chunks(pages: Pages) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Float32 vectors of some pages, and the first vector of each page and the end."""
    vectors, starts = pages
    for first in range(0, len(starts) - 1, CHUNK):
        own = starts[first : first + CHUNK + 1]
        yield np.asarray(vectors[own[0] : own[-1]], np.float32), own - own[0]


def encoded_ranker(pages: Pages, of_page: Callable[..., np.ndarray], of_query: Callable[..., np.ndarray]) -> Ranker:
    rows = [
        of_page(vectors[a:b]).astype(np.float32)
        for vectors, starts in chunks(pages)
        for a, b in pairwise(starts.tolist())
    ]
    matrix = np.stack(rows)
    return lambda query: matrix @ of_query(query).astype(np.float32)


def list_rankers(pages: Pages, probe_counts: Sequence[int]) -> Iterator[tuple[str, Ranker]]:
    """Posting lists, and sparse vectors of the same centroids."""
    vectors, starts = pages
    count = centroid_count(len(vectors))
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.choice(len(vectors), min(len(vectors), SAMPLE * count), replace=False))
    centroids = find_centroids(unit(np.asarray(vectors[chosen], np.float32)), count).astype(np.float16)
    nearest = Nearest(centroids.astype(np.float32))
    owner = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    pairs = np.unique(np.concatenate([nearest(own).astype(np.int64) for own, _ in chunks(pages)]) << 32 | owner)
    numbers, members = pairs >> 32, (pairs & 0xFFFFFFFF).astype(np.uint32)
    bounds = np.searchsorted(numbers, np.arange(count + 1))
    rows = np.arange(len(starts) - 1)
    size = len(pairs) / len(rows)
    for probes in probe_counts:
        listed = ListedPages(len(rows), [rows], centroids, lambda _: [(bounds, members)], probes)

        def by_lists(query: np.ndarray, listed: ListedPages = listed) -> np.ndarray:
            return listed._gains(*listed._probe(query.astype(np.float32)))

        def by_sparse_vector(query: np.ndarray, listed: ListedPages = listed) -> np.ndarray:
            weights = np.zeros(count, np.float32)
            for probed, gains in zip(*listed._probe(query.astype(np.float32)), strict=True):
                weights[probed] += gains
            return np.bincount(members, weights[numbers], len(rows))

        yield f"posting lists, {probes} probes | {size:.0f} entries", by_lists
        yield f"sparse vector, {probes} probes | {size:.0f} entries", by_sparse_vector


def rankers(pages: Pages, encodings: Sequence[tuple[int, int, int]]) -> Iterator[tuple[str, Ranker]]:
    from fastembed.postprocess.muvera import Muvera

    dim = pages[0].shape[1]
    yield f"mean | {dim}", encoded_ranker(pages, candidate_vector, candidate_query)
    yield from list_rankers(pages, (16, 64))
    for planes, projected, repetitions in encodings:
        muvera = Muvera(dim, planes, projected, repetitions)
        size = repetitions * projected << planes
        ranker = encoded_ranker(pages, muvera.process_document, muvera.process_query)
        yield f"MUVERA, {planes}/{projected}/{repetitions} | {size:,}", ranker


def real_pages(locations: Sequence[str], queries: Path, limit: int) -> tuple[Pages, list[np.ndarray]]:
    pages: list[np.ndarray] = []

    def read(collection: PageCollection) -> None:
        pages.extend(page.vectors for page in collection.pages())

    indexes = [Index.open(location) for location in locations]
    for index in indexes:
        index.store.export_pages(read)
    texts = [json.loads(line)["text"] for line in queries.read_text("utf-8").splitlines()]
    chosen = texts[:: max(1, len(texts) // limit)][:limit]
    encoded = [np.asarray(q, np.float32) for q in indexes[0].encode_queries(chosen) if len(q)]
    return (np.concatenate(pages), np.concatenate(([0], np.cumsum([len(page) for page in pages])))), encoded


def word_pages(location: str, count: int, limit: int) -> tuple[Pages, list[np.ndarray]]:
    source = WordPages(Path(location))
    vectors, lengths, words = source.draw(count)
    queries = [source.query(words[i]) for i in source.rng.choice(len(words), limit)]
    return (vectors, np.concatenate(([0], lengths.cumsum()))), queries


def prepared_pages(folder: Path, limit: int) -> tuple[Pages, list[np.ndarray]]:
    stored = StoredPages(folder)
    return (stored.vectors, stored.starts), stored.queries[:limit]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", nargs="*", help="Index directories or URLs; their pages are searched together.")
    parser.add_argument("--queries", type=Path, help='JSON lines with "text".')
    parser.add_argument("--word-pages", type=int, help="Number of synthetic pages, instead of those of the index.")
    parser.add_argument("--prepared", type=Path, help="Folder of benchmarks.databases with the pages of one size.")
    parser.add_argument("--limit", type=int, default=300, help="Number of queries.")
    parser.add_argument("--encodings", type=int, default=len(ENCODINGS), help="Number of MUVERA sizes.")
    given = parser.parse_args()
    if given.prepared:
        pages, queries = prepared_pages(given.prepared, given.limit)
    elif given.word_pages:
        pages, queries = word_pages(given.index[0], given.word_pages, given.limit)
    else:
        pages, queries = real_pages(given.index, given.queries, given.limit)
    parts = [
        [np.maximum.reduceat(vectors @ query.T, starts[:-1], axis=0).sum(1) for query in queries]
        for vectors, starts in chunks(pages)
    ]
    best = [np.argsort(-np.concatenate(scores), kind="stable")[:TOP] for scores in zip(*parts, strict=True)]
    starts = pages[1]
    count = len(starts) - 1
    print(f"{count:,} pages, {len(queries):,} queries, {np.diff(starts).mean():.0f} vectors per page")
    print("candidates by | dimensions | " + " | ".join(f"{share:.0%}" for share in SHARES))
    for name, ranker in rankers(pages, ENCODINGS[: given.encodings]):
        recall = np.zeros(len(SHARES))
        for query, top in zip(queries, best, strict=True):
            order = np.argsort(-ranker(query), kind="stable")
            recall += [np.isin(top, order[: max(TOP, int(share * count))]).mean() for share in SHARES]
        print(f"{name} | " + " | ".join(f"{value:.3f}" for value in recall / len(queries)), flush=True)


if __name__ == "__main__":
    main()
