"""Centroids of an index's vectors, and for each the pages that have a vector nearest to it: where to look first.

Nothing is learnt but where vectors lie: spherical k-means over a sample of what is stored, in the space of the codes.
"""

from __future__ import annotations

import math

import numpy as np

from anchorfold.index.coding import Coding
from anchorfold.index.store.segment import Column, Segment, array_column

ROUNDS, SAMPLE = 4, 16  # of k-means, and vectors of the sample for each centroid
FEWEST, MOST = 64, 16384
BLOCK = 1 << 24  # products that are held at a time


def centroid_count(vectors: int) -> int:
    """How many centroids so many vectors are worth: a power of two near four times their square root."""
    return min(MOST, max(FEWEST, 1 << round(math.log2(4 * max(vectors, 1) ** 0.5))))


def find_centroids(sample: np.ndarray, count: int) -> np.ndarray:
    """`(count, width)` float32 unit vectors round which a sample `(n, width)` of vectors lies; the same each time."""
    rng = np.random.default_rng(0)
    centroids = unit(sample[rng.choice(len(sample), count, replace=len(sample) < count)])
    for _ in range(ROUNDS):
        nearest = assign(sample, centroids)
        order = np.argsort(nearest, kind="stable")
        members, firsts = np.unique(nearest[order], return_index=True)
        centroids[members] = unit(np.add.reduceat(sample[order], firsts, axis=0))
        empty = np.setdiff1d(np.arange(count), members)
        centroids[empty] = unit(sample[rng.choice(len(sample), len(empty))])
    return centroids


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1; a zero row stays zero."""
    lengths: np.ndarray = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: np.ndarray = vectors / np.maximum(lengths, 1e-12)
    return units


def assign(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """`(n,)` the number of each vector's nearest centroid."""
    import torch

    nearest = np.empty(len(vectors), np.int32)
    table = torch.from_numpy(np.ascontiguousarray(centroids.T, np.float32))
    step = max(1, BLOCK // len(centroids))
    for start in range(0, len(vectors), step):
        block = torch.from_numpy(np.ascontiguousarray(vectors[start : start + step], np.float32))
        nearest[start : start + step] = (block @ table).argmax(1).numpy()
    return nearest


def turned_vectors(segment: Segment, rows: slice | np.ndarray, coding: Coding) -> np.ndarray:
    """`(n, width)` float32 directions of stored vectors as turned queries are multiplied with them."""
    return coding.widen(np.ascontiguousarray(segment.codes[rows])).astype(np.float32)


def list_columns(segment: Segment, coding: Coding, centroids: np.ndarray) -> list[Column]:
    """The columns of a segment's lists: `pages` by centroid, and the `(centroids + 1,)` `bounds` of each list."""
    pairs = []
    owner = np.repeat(np.arange(len(segment)), segment.kept)
    step = max(1, BLOCK // coding.width)
    for start in range(0, len(owner), step):
        nearest = assign(turned_vectors(segment, slice(start, start + step), coding), centroids)
        pairs.append(nearest.astype(np.int64) * len(segment) + owner[start : start + step])
    listed = np.unique(np.concatenate([np.zeros(0, np.int64), *pairs]))
    numbers, pages = np.divmod(listed, max(len(segment), 1))
    bounds = np.searchsorted(numbers, np.arange(len(centroids) + 1)).astype(np.uint32)
    kind = np.uint16 if len(segment) <= 1 << 16 else np.uint32
    return [array_column("bounds", bounds), array_column("pages", pages.astype(kind))]
