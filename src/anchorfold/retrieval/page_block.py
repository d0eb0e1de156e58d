"""Exact MaxSim scores of pages whose codes were fetched from a database, with the kernels of the embedded index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from anchorfold.quantization.codec import Coding
from anchorfold.retrieval.kernels import Tokens, maxsim
from anchorfold.retrieval.scan import best_positions, rank


@dataclass(frozen=True)
class PageBlock:
    """Coded vectors of pages.

    Attributes:
        coding: encoding of the vectors.
        identities: `(n,)` int64 ids of the pages.
        codes: packed codes of each page, `(vectors * row_bytes)` bytes.
        scales: float16 scales of each page as bytes; empty for floats.
    """

    coding: Coding
    identities: np.ndarray
    codes: Sequence[bytes]
    scales: Sequence[bytes]

    @cached_property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        codes = np.frombuffer(b"".join(self.codes), np.uint8).reshape(-1, self.coding.row_bytes)
        counts = np.fromiter((len(page) // self.coding.row_bytes for page in self.codes), np.int64, len(self.codes))
        return codes, np.frombuffer(b"".join(self.scales), np.float16), np.concatenate(([0], counts.cumsum()))

    def top_k(self, queries: Sequence[Any], count: int) -> list[list[tuple[int, float]]]:
        """Return the best pages of each query as (id, score), best first; ties are in ascending order of ids.

        Args:
            queries: arrays or tensors, `(tokens, d)` each.
            count: maximum pages per query.
        """
        order = np.argsort(self.identities, kind="stable")
        if not len(order):
            return [[] for _ in queries]
        codes, scales, starts = self._arrays
        tokens = Tokens.of(queries, self.coding)
        scores, errors = maxsim(self.coding, codes, scales, starts, order, tokens)
        rankings: list[list[tuple[int, float]]] = []
        for query, (first, last) in enumerate(pairwise(tokens.starts.tolist())):
            if first == last:
                rankings.append([])
                continue
            chosen = order[best_positions(scores[query], count, float(errors[query]))]
            exact = self._rescore(tokens.values[first:last], chosen)
            rankings.append([(int(self.identities[row]), score) for row, score in rank(exact, chosen, count)])
        return rankings

    def _rescore(self, tokens: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Return the `(n,)` scores of rotated tokens of one query, computed page by page in float32."""
        codes, scales, starts = self._arrays
        products = self.coding.products
        bounds = zip(starts[rows].tolist(), starts[rows + 1].tolist(), strict=True)
        return np.array([products(tokens, codes[a:b], scales[a:b]).max(0).sum() for a, b in bounds], np.float32)


def merge_rankings(
    rankings: Sequence[Sequence[tuple[int, float]]], count: int
) -> list[tuple[int, float]]:  # fmt: skip
    """Merge rankings of (id, score) of different pages; ties are in ascending order of ids."""
    pages = [page for ranking in rankings for page in ranking]
    return sorted(pages, key=lambda page: (-page[1], page[0]))[:count]
