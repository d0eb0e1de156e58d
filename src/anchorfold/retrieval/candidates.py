"""Select candidates for a query from posting lists, so that a search does not read every page.

Each token probes the posting lists of its nearest centroids. Per token, a page gains the similarity of the best probed
centroid that lists it minus that of the worst probed one. All pages of segments without posting lists are candidates.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anchorfold.quantization.codec import Coding
from anchorfold.retrieval.kernels import Tokens, maxsim, nth_largest, sum_gains
from anchorfold.retrieval.live_pages import LivePages
from anchorfold.storage.column_file import ColumnFile

FIRST_PAGES = 20_000  # minimum pages per index: below, an exact scan is as fast
PROBES = 64  # posting lists probed per token
CANDIDATES = 4_000  # pages to score per query


class Candidates:
    """Candidate selection for one commit of an index.

    Args:
        live: live pages of the commit.
        centroids: `(C, components)` float16 centroids in the space of the codes.
        lists: posting lists of segments, by position in `live.segments`.
        probes: posting lists to probe per token.
    """

    def __init__(
        self, live: LivePages, centroids: np.ndarray, lists: Mapping[int, ColumnFile], probes: int = PROBES
    ) -> None:
        self.live = live
        self._set_centroids(centroids, probes)
        self.lists = {at: (file.column("bounds").astype(np.int64), file.column("pages")) for at, file in lists.items()}
        self.unlisted = np.concatenate(
            [np.zeros(0, np.int64)]
            + [np.arange(*live.bases[at : at + 2]) for at in range(len(live.segments)) if at not in self.lists]
        )

    def _set_centroids(self, centroids: np.ndarray, probes: int) -> None:
        self.probes = min(probes, len(centroids))
        self._coding = Coding(centroids.shape[1], 16)
        self._codes = self._coding.encode(centroids)[0]
        self._starts = np.arange(len(centroids) + 1)

    def choose(self, tokens: np.ndarray, allowed: np.ndarray, count: int = CANDIDATES) -> np.ndarray:
        """Return the row numbers of the candidates in ascending order.

        Args:
            tokens: `(t, components)` rotated tokens of a query.
            allowed: `(rows,)` mask of the pages that may be returned.
            count: maximum candidates from posting lists; pages of segments without posting lists are added.
        """
        probed, values = self._probe(tokens)
        totals = self._gains(probed, values)
        if not allowed.all():
            totals *= allowed
        least = nth_largest(totals, count) if count < len(totals) else 0
        listed = np.flatnonzero(totals >= least if least > 0 else totals)
        return np.sort(np.concatenate([listed, self.unlisted[allowed[self.unlisted]]]))

    def _gains(self, probed: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return the `(rows,)` gains of all pages."""
        totals = np.zeros(len(self.live), np.float32)
        for at, (bounds, pages) in self.lists.items():
            first, last = self.live.bases[at : at + 2].tolist()
            totals[first:last] = sum_gains(bounds, pages, probed, values, last - first)
        return totals

    def _probe(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the posting lists to probe per token and their gains, `(t, probes)`, in ascending order of gain."""
        single_tokens = Tokens(np.ascontiguousarray(tokens), np.arange(len(tokens) + 1))
        scales = np.zeros(0, np.float16)
        similarity, _ = maxsim(self._coding, self._codes, scales, self._starts, self._starts[:-1], single_tokens)
        best = np.argpartition(similarity, similarity.shape[1] - self.probes, axis=1)[:, -self.probes :]
        order = np.argsort(np.take_along_axis(similarity, best, 1), axis=1)
        best = np.take_along_axis(best, order, 1)
        gains = np.take_along_axis(similarity, best, 1)
        return best, gains - gains[:, :1]
