"""Centroids of an index's vectors, and posting lists of the pages that have a vector assigned to each centroid.

Centroids are computed by spherical k-means over a sample of the stored vectors, in the space of the codes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from anchorfold.quantization.codec import Coding
from anchorfold.storage.column_file import FileColumn, array_column
from anchorfold.storage.segment import Segment

if TYPE_CHECKING:
    import torch

ROUNDS, SAMPLE = 4, 16  # k-means iterations, and sampled vectors per centroid
FEWEST, MOST = 64, 32768
BLOCK = 1 << 24  # inner products in memory at a time
FLAT = 2048  # maximum centroids for exhaustive comparison; larger sets are grouped
OPENED = 6  # groups searched per vector


def centroid_count(vectors: int) -> int:
    """Return the number of centroids for a number of vectors: a power of two near eight times its square root."""
    return min(MOST, max(FEWEST, 1 << round(math.log2(8 * max(vectors, 1) ** 0.5))))


def find_centroids(sample: np.ndarray, count: int) -> np.ndarray:
    """Return `(count, d)` float32 unit centroids of a sample `(n, d)`; deterministic."""
    rng = np.random.default_rng(0)
    centroids = unit(sample[rng.choice(len(sample), count, replace=len(sample) < count)])
    for _ in range(ROUNDS):
        nearest = Nearest(centroids)(sample)
        order = np.argsort(nearest, kind="stable")
        members, firsts = np.unique(nearest[order], return_index=True)
        centroids[members] = unit(np.add.reduceat(sample[order], firsts, axis=0))
        empty = np.setdiff1d(np.arange(count), members)
        centroids[empty] = unit(sample[rng.choice(len(sample), len(empty))])
    return centroids


def unit(vectors: np.ndarray) -> np.ndarray:
    """L2-normalize rows `(n, d)`; zero rows stay zero."""
    lengths: np.ndarray = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: np.ndarray = vectors / np.maximum(lengths, 1e-12)
    return units


class Nearest:
    """Nearest-centroid assignment: exhaustive for few centroids, otherwise within the groups nearest to a vector.

    The grouped search is deterministic but approximate. This is acceptable because a query probes many posting lists,
    so a near-optimal assignment suffices.
    """

    def __init__(self, centroids: np.ndarray) -> None:
        import torch

        self._table = torch.from_numpy(np.ascontiguousarray(centroids, np.float32))
        self._groups: Nearest | None = None
        if len(centroids) > FLAT:
            count = round(len(centroids) ** 0.5)
            middles = find_centroids(np.asarray(centroids, np.float32), count)
            self._groups = Nearest(middles)
            members = self._groups(centroids)
            self._order = torch.from_numpy(np.argsort(members, kind="stable"))
            self._bounds = np.searchsorted(np.sort(members), np.arange(count + 1)).tolist()
            self._table = self._table[self._order].contiguous()

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return `(n,)` centroid numbers of `(n, d)` vectors."""
        import torch

        nearest = np.empty(len(vectors), np.int32)
        width = len(self._table) if self._groups is None else 8 * max(len(self._groups._table), self._table.shape[1])
        step = max(1, BLOCK // width)
        for start in range(0, len(vectors), step):
            block = torch.from_numpy(np.ascontiguousarray(vectors[start : start + step], np.float32))
            numbers = (block @ self._table.T).argmax(1) if self._groups is None else self._in_groups(block)
            nearest[start : start + step] = numbers.numpy()
        return nearest

    def _in_groups(self, block: torch.Tensor) -> torch.Tensor:
        assert self._groups is not None
        middles = self._groups._table
        opened = (block @ middles.T).topk(min(OPENED, len(middles)), dim=1).indices
        order = opened.flatten().argsort(stable=True)  # (vector, group) pairs, group by group
        counts = opened.flatten().bincount(minlength=len(middles)).tolist()
        values, numbers = block.new_empty(len(order)), order.new_empty(len(order))
        at = 0
        for group, count in enumerate(counts):
            first, last = self._bounds[group : group + 2]
            pairs = order[at : at + count]
            at += count
            if not count:
                continue
            if first == last:
                values[pairs] = -math.inf
                continue
            best, number = (block[pairs // opened.shape[1]] @ self._table[first:last].T).max(1)
            values[pairs], numbers[pairs] = best, self._order[first + number]
        winner = values.view(opened.shape).argmax(1, keepdim=True)
        return numbers.view(opened.shape).gather(1, winner)[:, 0]


def unpacked_vectors(segment: Segment, rows: slice | np.ndarray, coding: Coding) -> np.ndarray:
    """Return `(n, d)` float32 unpacked codes of stored vectors, without scales, in the space of rotated queries."""
    return coding.unpack(np.ascontiguousarray(segment.coded(rows)[0])).astype(np.float32)


def list_columns(segment: Segment, coding: Coding, centroids: np.ndarray) -> list[FileColumn]:
    """Return the columns of a segment's posting lists: `pages` by centroid, and `bounds` `(centroids + 1,)`."""
    pairs, find = [], Nearest(centroids)
    owner = np.repeat(np.arange(len(segment)), segment.kept)
    step = max(1, BLOCK // coding.components)
    for start in range(0, len(owner), step):
        nearest = find(unpacked_vectors(segment, slice(start, start + step), coding))
        pairs.append(nearest.astype(np.int64) * len(segment) + owner[start : start + step])
    listed = np.unique(np.concatenate([np.zeros(0, np.int64), *pairs]))
    numbers, pages = np.divmod(listed, max(len(segment), 1))
    bounds = np.searchsorted(numbers, np.arange(len(centroids) + 1)).astype(np.uint32)
    kind = np.uint16 if len(segment) <= 1 << 16 else np.uint32
    return [array_column("bounds", bounds), array_column("pages", pages.astype(kind))]
