"""The pages that are worth scoring for a query, from lists of pages by centroid: search without reading everything.

Each token opens the lists of its nearest centroids. A page counts, for each token, the best centroid that lists it, as
far as that is better than the last one opened. Segments without lists are small, and all of their pages are candidates.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from anchorfold.index.live import LivePages
from anchorfold.index.store.column_file import ColumnFile

FIRST_PAGES = 20_000  # of an index: below, scanning everything is as quick
FEW_PAGES = 4_000  # that a filter leaves: these are scored, all of them
OPENED = 64  # lists a token
CANDIDATES = 4_000  # pages that are scored


class Candidates:
    """Chooses pages of one version of an index.

    Args:
        live: its pages.
        centroids: `(C, width)` in the space of the codes.
        lists: the lists of segments, by their place in `live.segments`.
        opened: lists a token.
    """

    def __init__(
        self, live: LivePages, centroids: np.ndarray, lists: Mapping[int, ColumnFile], opened: int = OPENED
    ) -> None:
        self.live, self.centroids, self.opened = live, centroids, min(opened, len(centroids))
        self.lists = {at: (file.column("bounds").astype(np.int64), file.column("pages")) for at, file in lists.items()}
        self.unlisted = np.concatenate(
            [np.zeros(0, np.int64)]
            + [np.arange(*live.bases[at : at + 2]) for at in range(len(live.segments)) if at not in self.lists]
        )

    def choose(self, tokens: np.ndarray, allowed: np.ndarray, count: int = CANDIDATES) -> np.ndarray:
        """Numbers of the pages to score, ascending.

        Args:
            tokens: `(t, width)` of a query, turned.
            allowed: `(rows,)` true for pages that may be answered.
            count: pages, beside those of segments without lists.
        """
        opened = self.opened
        similarity = tokens @ self.centroids.T
        best = np.argpartition(similarity, len(self.centroids) - opened, axis=1)[:, -opened:]
        # Ascending: of the lists that a page is on, the best is written last.
        order = np.argsort(np.take_along_axis(similarity, best, 1), axis=1)
        best = np.take_along_axis(best, order, 1)
        gains = np.take_along_axis(similarity, best, 1)
        gains -= gains[:, :1]
        totals = np.zeros(len(self.live), np.float32)
        for at, (bounds, pages) in self.lists.items():
            first, last = self.live.bases[at : at + 2]
            totals[first:last] = self._totals(bounds, pages, int(last - first), best, gains)
        totals[~allowed] = 0
        listed = np.flatnonzero(totals)
        if len(listed) > count:
            listed = listed[np.argpartition(totals[listed], len(listed) - count)[-count:]]
        return np.sort(np.concatenate([listed, self.unlisted[allowed[self.unlisted]]]))

    @staticmethod
    def _totals(bounds: np.ndarray, pages: np.ndarray, rows: int, best: np.ndarray, gains: np.ndarray) -> np.ndarray:
        """`(rows,)` what the pages of one segment gain from the opened lists of all tokens."""
        totals, gain = np.zeros(rows, np.float32), np.zeros(rows, np.float32)
        for lists, values in zip(best, gains, strict=True):
            starts, stops = bounds[lists], bounds[lists + 1]
            members = np.concatenate([pages[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True)])
            gain[members] = np.repeat(values, stops - starts)
            totals += gain
            gain[members] = 0
        return totals
