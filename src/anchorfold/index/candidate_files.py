"""The files of the candidate stage: centroids of an index, and lists of pages for its large segments.

They are made by the writer at the end of a run, one commit each, so that a run that is cut short goes on with the next.
"""

from __future__ import annotations

import logging

import numpy as np

from anchorfold.index.candidates import FIRST_PAGES, Candidates
from anchorfold.index.centroids import (
    SAMPLE,
    centroid_count,
    find_centroids,
    list_columns,
    turned_vectors,
    unit,
)
from anchorfold.index.live import LivePages
from anchorfold.index.store.columns import array_column
from anchorfold.index.store.snapshot import Snapshot
from anchorfold.index.store.table import PageTable

LISTED_ROWS = 2_000  # of a segment that gets lists
GROWTH = 16  # times as many vectors as when centroids were made: then they are made anew
_log = logging.getLogger(__name__)


def update_lists(table: PageTable) -> None:
    """Make what is missing of centroids and lists. The caller holds the writer's lock."""
    if sum(len(segment) for segment in table.segments().values()) < FIRST_PAGES:
        return
    number = newest_centroids(table)
    vectors = sum(int(segment.starts[-1]) for segment in table.segments().values())
    if not number or table.state.extras[_centroids_name(number)].rows * GROWTH < vectors:
        count = centroid_count(vectors)
        _log.debug("%s: %d centroids of %d vectors", table.folder, count, vectors)
        found = find_centroids(sampled(table, SAMPLE * count), count).astype(np.float16)
        table.put_extra(_centroids_name(number + 1), vectors, [array_column("centroids", found)], table.state.extras)
        number += 1
    centroids = table.extra(_centroids_name(number)).column("centroids").astype(np.float32)
    for segment_number, segment in table.segments().items():
        name = _lists_name(segment_number, number)
        if len(segment) >= LISTED_ROWS and name not in table.state.extras:
            _log.debug("%s: lists of segment %d", table.folder, segment_number)
            table.put_extra(name, len(segment), list_columns(segment, table.settings.coding, centroids))
    table.remove_left_overs()


def sampled(snapshot: Snapshot, count: int) -> np.ndarray:
    """About `count` unit vectors of all segments, in the space of the codes."""
    segments = list(snapshot.segments().values())
    total = sum(int(segment.starts[-1]) for segment in segments)
    rng = np.random.default_rng(0)
    parts = []
    for segment in segments:
        vectors = int(segment.starts[-1])
        rows = np.sort(rng.choice(vectors, min(vectors, -(-count * vectors // max(total, 1))), replace=False))
        parts.append(unit(turned_vectors(segment, rows, snapshot.settings.coding)))
    return np.concatenate(parts)


def open_candidates(snapshot: Snapshot, live: LivePages) -> Candidates | None:
    """The candidate stage of one version; None for an index without."""
    number = newest_centroids(snapshot)
    if not number:
        return None
    lists = {
        at: snapshot.extra(_lists_name(segment, number))
        for at, segment in enumerate(snapshot.state.segments)
        if _lists_name(segment, number) in snapshot.state.extras
    }
    centroids = snapshot.extra(_centroids_name(number)).column("centroids").astype(np.float32)
    return Candidates(live, centroids, lists) if lists else None


def newest_centroids(snapshot: Snapshot) -> int:
    """The number of the newest centroids; 0 if there are none."""
    names = [name for name in snapshot.state.extras if name.endswith(".centroids")]
    return max((int(name.partition(".")[0]) for name in names), default=0)


def _centroids_name(number: int) -> str:
    return f"{number}.centroids"


def _lists_name(segment: int, centroids: int) -> str:
    return f"{segment:08}-{centroids}.lists"
