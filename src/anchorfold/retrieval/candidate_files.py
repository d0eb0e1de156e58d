"""Derived files of the candidate stage: centroids of an index, and posting lists of its large vector files.

They are written at the end of a run and are not registered. Searches ignore a file that is missing, damaged or belongs
to another vector file, and use an exact scan instead; the next run rebuilds it.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from pathlib import Path

import numpy as np

from anchorfold.errors import DamagedError
from anchorfold.retrieval.candidates import FIRST_PAGES, Candidates
from anchorfold.retrieval.centroids import (
    SAMPLE,
    centroid_count,
    find_centroids,
    list_columns,
    unit,
    unpacked_vectors,
)
from anchorfold.retrieval.live_pages import LivePages
from anchorfold.storage.column_file import ColumnFile, FileColumn, array_column, write_columns
from anchorfold.storage.file_errors import storage_errors
from anchorfold.storage.schema import VECTORS
from anchorfold.storage.segment import Segment
from anchorfold.storage.snapshot import Snapshot
from anchorfold.storage.sqlite_store import SqliteStore

LISTED_ROWS = 2_000  # minimum pages of a vector file with posting lists
GROWTH = 16  # centroids are recomputed when the number of vectors has grown by more than this factor
CENTROIDS = "centroids.ivf"
_log = logging.getLogger(__name__)


def update_lists(store: SqliteStore) -> None:
    """Build missing centroids and posting lists, and remove outdated ones. The caller holds the writer lock."""
    if store.read(_page_count) >= FIRST_PAGES and store.read(_build):
        store.announce()
    store.read(_remove_outdated)


def _page_count(snapshot: Snapshot) -> int:
    return sum(entry.rows for entry in snapshot.files.values())


def _build(snapshot: Snapshot) -> bool:
    """Write missing files; return whether any file was written."""
    segments, coding, written = snapshot.segments(), snapshot.settings.coding, False
    vectors = sum(int(segment.starts[-1]) for segment in segments.values())
    file = _open_centroids(snapshot)
    if file is None or file.header["vectors"] * GROWTH < vectors:
        count = centroid_count(vectors)
        _log.debug("%s: computing %d centroids of %d vectors", snapshot.folder, count, vectors)
        computed = find_centroids(_sample(snapshot, SAMPLE * count), count).astype(np.float16)
        header = {"index_id": snapshot.version.index_id, "vectors": vectors}
        _write(snapshot.folder / VECTORS / CENTROIDS, count, [array_column("centroids", computed)], header)
        file, written = _open_centroids(snapshot), True
        assert file is not None
    centroids = file.column("centroids").astype(np.float32)
    for number, segment in segments.items():
        if len(segment) >= LISTED_ROWS and _open_lists(snapshot, number, segment, file) is None:
            _log.debug("%s: building posting lists of vector file %d", snapshot.folder, number)
            path = _lists_path(snapshot.folder, number)
            _write(path, len(segment), list_columns(segment, coding, centroids), _lists_header(segment, file))
            written = True
    return written


def _write(path: Path, rows: int, columns: list[FileColumn], header: dict[str, object]) -> None:
    part = path.with_suffix(".part")
    with storage_errors(path.parent.parent):
        write_columns(part, rows, columns, header)
        part.replace(path)


def _lists_path(folder: Path, number: int) -> Path:
    return folder / VECTORS / f"{number:08}.ivf"


def _lists_header(segment: Segment, centroids: ColumnFile) -> dict[str, object]:
    """Return a header that identifies the files that posting lists were built from."""
    return {"segment": [segment.entry.bytes, segment.entry.checksum], "centroids": centroids.entry.checksum}


def _open_centroids(snapshot: Snapshot) -> ColumnFile | None:
    file = _open(snapshot.folder / VECTORS / CENTROIDS)
    return file if file is not None and file.header.get("index_id") == snapshot.version.index_id else None


def _open_lists(snapshot: Snapshot, number: int, segment: Segment, centroids: ColumnFile) -> ColumnFile | None:
    file = _open(_lists_path(snapshot.folder, number))
    return file if file is not None and file.header == _lists_header(segment, centroids) else None


def _open(path: Path) -> ColumnFile | None:
    """Open and verify a derived file; return None if it is missing or damaged."""
    try:
        status = os.stat(path)
        return _verified(path, (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size))
    except FileNotFoundError:
        return None
    except (DamagedError, KeyError):
        _log.warning("%s is damaged: it is ignored, and built again by the next `anchorfold index`.", path)
        return None


@lru_cache(64)
def _verified(path: Path, identity: tuple[int, ...]) -> ColumnFile:
    """Open and verify a derived file; `identity` distinguishes it from an earlier file of the same name."""
    file = ColumnFile(path)
    for name in file.names():
        file.column(name)
    return file


def _sample(snapshot: Snapshot, count: int) -> np.ndarray:
    """Return about `count` unit vectors `(n, components)` sampled from all vector files, in the space of the codes."""
    segments = list(snapshot.segments().values())
    total = sum(int(segment.starts[-1]) for segment in segments)
    rng = np.random.default_rng(0)
    parts = []
    for segment in segments:
        vectors = int(segment.starts[-1])
        rows = np.sort(rng.choice(vectors, min(vectors, -(-count * vectors // max(total, 1))), replace=False))
        parts.append(unit(unpacked_vectors(segment, rows, snapshot.settings.coding)))
    return np.concatenate(parts)


def open_candidates(snapshot: Snapshot, live: LivePages) -> Candidates | None:
    """Return the candidate stage of a commit; None for an index without posting lists."""
    file = _open_centroids(snapshot)
    if file is None:
        return None
    lists = {}
    for at, (number, segment) in enumerate(snapshot.segments().items()):
        if len(segment) >= LISTED_ROWS and (opened := _open_lists(snapshot, number, segment, file)) is not None:
            lists[at] = opened
    return Candidates(live, file.column("centroids"), lists) if lists else None


def _remove_outdated(snapshot: Snapshot) -> None:
    """Remove posting lists of vector files that no longer exist, and partial files."""
    known = {f"{number:08}" for number in snapshot.files}
    with storage_errors(snapshot.folder):
        for path in (snapshot.folder / VECTORS).iterdir():
            outdated = path.suffix == ".ivf" and path.name != CENTROIDS and path.stem not in known
            if outdated or path.suffix == ".part":
                path.unlink(missing_ok=True)
