"""Agreement of search results before and after compression, on queries that are sampled from the pages."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from anchorfold.indexes.index import Index
from anchorfold.vectors.vector_source import VectorSource

QUERIES, TOKENS, FIRST = 20, 16, 10


@dataclass(frozen=True)
class ResultAgreement:
    """Mean share of the first ten pages that are the same before and after, over a number of queries."""

    queries: int
    first_ten: float


def result_agreement(source: VectorSource, index: Index, seed: int = 0) -> ResultAgreement | None:
    """Compare the results of a source that can search with those of the index; None if it cannot.

    A query consists of vectors of a random page. Both sides score every page.
    """
    if type(source).search is VectorSource.search:
        return None  # no page is read
    generator = random.Random(seed)
    total = len(source)
    chosen, seen = set(generator.sample(range(total), min(QUERIES, total))), iter(range(total + 1))
    queries = []
    for page in source.pages(lambda *_: next(seen, total) in chosen):
        if page.vectors is not None and page.vectors.ndim == 2 and len(page.vectors):
            rows = sorted(generator.sample(range(len(page.vectors)), min(TOKENS, len(page.vectors))))
            queries.append(page.vectors[rows].astype(np.float32))
    before = source.search(queries, FIRST) if queries else None
    if before is None:
        return None
    shares = []
    for pages, hits in zip(before, index.search_vectors(queries, FIRST, exact=True), strict=True):
        after = {(hit.document, hit.page) for hit in hits}
        shares.append(len(after & set(pages)) / max(1, len(pages)))
    return ResultAgreement(len(shares), sum(shares) / len(shares))
