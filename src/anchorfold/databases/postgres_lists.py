"""Posting lists of an index in PostgreSQL: which pages have a vector near each centroid.

As in `retrieval.candidate_files`, but stored in the tables `centroids`, `page_blocks` and `posting_lists`, so that a
search fetches the lists that it probes instead of all codes. Pages in no block are always candidates.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from anchorfold.databases.postgres_connection import Connection
from anchorfold.databases.postgres_lock import lock_key
from anchorfold.databases.postgres_vectors import BY_ID, fetch_pages, page_ids
from anchorfold.quantization.codec import Coding
from anchorfold.retrieval.centroids import SAMPLE, Nearest, centroid_count, find_centroids, unit
from anchorfold.retrieval.fetched_pages import FetchedPages, PostingLists

if TYPE_CHECKING:
    from anchorfold.databases.postgres_documents import PostgresDocuments

FIRST_PAGES = 5_000  # minimum pages of an index with posting lists
LISTED_PAGES = 1_000  # minimum pages of a new block
LARGEST = 1 << 16  # pages of a block, numbered by uint16
SMALL_BLOCKS = 4  # blocks of less than half of the largest size; more are merged
GROWTH = 16  # centroids are recomputed when the number of vectors has grown by more than this factor
MOST_BYTES = 1 << 24  # of centroids, which every process fetches
CHUNK = 1_000  # pages in memory at a time
_log = logging.getLogger(__name__)


def update_lists(store: PostgresDocuments, writer: Connection) -> None:
    """Build missing posting lists, unless another writer does; `writer` holds the lock of a writer."""
    key = lock_key(store.address, store.version.index_id) ^ 1
    (free,) = writer.execute("SELECT pg_try_advisory_lock(%s)", (key,)).fetchone() or (False,)
    if not free:
        return
    try:
        with store.connections.reading() as connection:
            _build(store, connection)
    finally:
        writer.execute("SELECT pg_advisory_unlock(%s)", (key,))


def _build(store: PostgresDocuments, connection: Connection) -> None:
    ids = page_ids(connection, None)
    if len(ids) < FIRST_PAGES:
        return
    coding = store.settings.coding
    lists = DatabaseLists(connection, coding.components)
    (vectors,) = connection.execute("SELECT coalesce(sum(vectors), 0)::bigint FROM live_pages").fetchone() or (0,)
    if lists.centroids is None or lists.vectors * GROWTH < vectors:
        count = min(centroid_count(vectors), 1 << (MOST_BYTES // (2 * coding.components)).bit_length() - 1)
        _log.debug("%s: computing %d centroids of %d vectors", store.location, count, vectors)
        chosen = np.random.default_rng(0).permutation(ids)
        sample = _sample(store, connection, coding, chosen[: -(-SAMPLE * count * len(ids) // vectors)])
        centroids, token, dissolved = find_centroids(sample, count).astype(np.float16), secrets.randbits(62), None
    else:
        centroids, token, dissolved = lists.centroids, lists.token, lists.outdated(ids)
    listed = [lists.blocks[at] for at in lists.blocks if dissolved is not None and at not in dissolved]
    unlisted = np.setdiff1d(ids, np.concatenate([np.zeros(0, np.int64), *listed]))
    if len(unlisted) < LISTED_PAGES and not dissolved and dissolved is not None:
        return
    with store.transaction() as writer:
        if dissolved is None:
            writer.execute("DELETE FROM page_blocks")
            writer.execute("DELETE FROM centroids")
            writer.execute("INSERT INTO centroids VALUES (1, %s, %s, %s)", (token, vectors, centroids.tobytes()))
        else:
            writer.execute("DELETE FROM page_blocks WHERE id = ANY(%s)", (list(dissolved),))
    nearest = Nearest(centroids.astype(np.float32))
    for start in range(0, len(unlisted), LARGEST):
        pages = unlisted[start : start + LARGEST]
        bounds, members = _lists(store, connection, nearest, pages, len(centroids))
        _log.debug("%s: storing posting lists of %d pages", store.location, len(pages))
        with store.transaction() as writer:
            block = secrets.randbits(62)  # never used again, even in a restored backup: readers cache blocks by id
            values = (block, token, pages.astype(">i8").tobytes())
            writer.execute("INSERT INTO page_blocks (id, centroids, pages) VALUES (%s, %s, %s)", values)
            with writer.cursor().copy("COPY posting_lists (block, centroid, pages) FROM STDIN") as copy:
                for centroid in np.flatnonzero(np.diff(bounds)).tolist():
                    copy.write_row((block, centroid, members[bounds[centroid] : bounds[centroid + 1]].tobytes()))


def _chunks(
    store: PostgresDocuments, connection: Connection, coding: Coding, ids: np.ndarray
) -> Iterator[FetchedPages]:
    for start in range(0, len(ids), CHUNK):
        yield fetch_pages(connection, store.location, coding, BY_ID, ids[start : start + CHUNK].tolist())


def _sample(store: PostgresDocuments, connection: Connection, coding: Coding, ids: np.ndarray) -> np.ndarray:
    """Return the unit vectors `(n, components)` of some pages, in the space of the codes."""
    parts = [unit(coding.unpack(block.codes).astype(np.float32)) for block in _chunks(store, connection, coding, ids)]
    return np.concatenate(parts)


def _lists(
    store: PostgresDocuments, connection: Connection, nearest: Nearest, ids: np.ndarray, count: int
) -> PostingLists:
    """Return the posting lists of pages in ascending order of ids, as little-endian uint16."""
    coding, pairs = store.settings.coding, [np.zeros(0, np.int64)]
    for block in _chunks(store, connection, coding, ids):
        centroids = nearest(coding.unpack(block.codes).astype(np.float32)).astype(np.int64)
        rows = np.repeat(np.searchsorted(ids, block.identity), block.kept)
        pairs.append(np.unique(centroids * LARGEST + rows))
    numbers, pages = np.divmod(np.unique(np.concatenate(pairs)), LARGEST)
    return np.searchsorted(numbers, np.arange(count + 1)), pages.astype("<u2")


class DatabaseLists:
    """The centroids and blocks that one transaction sees; `centroids` is None if there are none.

    Args:
        connection: a connection in a transaction.
        components: components of a centroid.
        known: lists of an earlier transaction, of which unchanged parts are not fetched again.
    """

    def __init__(self, connection: Connection, components: int, known: DatabaseLists | None = None) -> None:
        self.centroids: np.ndarray | None = None
        self.blocks: dict[int, np.ndarray] = {}  # ids of the pages of each block, in ascending order
        self._lists: dict[int, PostingLists] = {}
        row = connection.execute("SELECT token, vectors FROM centroids").fetchone()
        if row is None:
            return
        self.token, self.vectors = row
        same = known if known is not None and known.centroids is not None and known.token == self.token else None
        if same is None:
            packed = _value(connection, "SELECT centroids FROM centroids", ())
            self.centroids = np.frombuffer(packed, np.float16).reshape(-1, components)
        else:
            self.centroids = same.centroids
        for (block,) in connection.execute(
            "SELECT id FROM page_blocks WHERE centroids = %s ORDER BY id", (self.token,)
        ):
            if same is not None and block in same.blocks:
                self.blocks[block] = same.blocks[block]
                if block in same._lists:
                    self._lists[block] = same._lists[block]
            else:
                packed = _value(connection, "SELECT pages FROM page_blocks WHERE id = %s", (block,))
                self.blocks[block] = np.frombuffer(packed, ">i8").astype(np.int64)

    def outdated(self, ids: np.ndarray) -> set[int]:
        """Return blocks to build again: those with few of the pages `ids`, and small ones if there are many."""
        counts = {block: int(np.isin(pages, ids).sum()) for block, pages in self.blocks.items()}
        sparse = {block for block, count in counts.items() if 2 * count < len(self.blocks[block])}
        small = {block for block, count in counts.items() if 2 * count < LARGEST} - sparse
        return sparse | (small if len(small) > SMALL_BLOCKS else set())

    def load(self, connection: Connection) -> Sequence[PostingLists]:
        """Return the lists of all blocks, which stay in memory."""
        for block in self.blocks:
            if block not in self._lists:
                rows = connection.execute("SELECT centroid, pages FROM posting_lists WHERE block = %s", (block,))
                self._lists[block] = self._joined(rows.fetchall())
        return [self._lists[block] for block in self.blocks]

    def fetch(self, connection: Connection, centroids: np.ndarray) -> Sequence[PostingLists]:
        """Return the lists of all blocks, with only the pages of some centroids."""
        rows: dict[int, list[tuple[int, bytes]]] = {block: [] for block in self.blocks}
        query = "SELECT block, centroid, pages FROM posting_lists WHERE block = ANY(%s) AND centroid = ANY(%s)"
        parameters = (list(rows), centroids.tolist())
        for block, centroid, pages in connection.execute(query, parameters, binary=True):
            rows[block].append((centroid, pages))
        return [self._joined(lists) for lists in rows.values()]

    def _joined(self, rows: Sequence[tuple[int, bytes]]) -> PostingLists:
        assert self.centroids is not None
        lengths = np.zeros(len(self.centroids) + 1, np.int64)
        rows = sorted(rows)
        lengths[[centroid + 1 for centroid, _ in rows]] = [len(pages) // 2 for _, pages in rows]
        return lengths.cumsum(), np.frombuffer(b"".join(pages for _, pages in rows), "<u2")


def _value(connection: Connection, query: str, parameters: Sequence[object]) -> bytes:
    row = connection.execute(query, parameters, binary=True).fetchone()
    return bytes(row[0]) if row else b""
