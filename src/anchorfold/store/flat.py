"""A flat, memory-mapped copy of all live vectors, made for scanning. The table is the truth; this can go at any time.

Pages lie sorted by their number of vectors: a run of pages of equal length is one dense block, whose maxima need
no ragged bookkeeping. `vectors` are floats for exact scores, `codes` the same as int8 on one scale for a first scan.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from pyarrow import feather

from anchorfold.errors import AnchorFoldError
from anchorfold.store.schema import all_vectors_of
from anchorfold.store.table import PageTable

CACHE = "cache"
LAYOUT = 1
BLOCK = 65536  # vectors rounded at a time
_FILES = ("vectors.npy", "codes.npy", "lengths.npy", "pages.feather", "about.json")


@dataclass(frozen=True)
class FlatIndex:
    """All live pages of one version of the table.

    `vectors (V, d)` floats, `codes (V, d)` int8 with `vectors ~ codes * scale`, `lengths (P,)` vectors a page,
    ascending; `pages` a table of source, document and page number in the same order.
    """

    version: int
    vectors: np.ndarray
    codes: np.ndarray
    lengths: np.ndarray
    scale: float
    pages: pa.Table

    def __len__(self) -> int:
        return len(self.lengths)


def open_flat(table: PageTable) -> FlatIndex:
    """The flat copy of the table's current version, built first if need be."""
    place = table.folder / CACHE / f"{table.version}-{LAYOUT}"
    found = _load(place, table.version)
    if found is not None:
        return found
    try:
        place.parent.mkdir(exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix="new-", dir=place.parent))
    except OSError:
        return build(table, None)  # an index that this user may only read
    try:
        built = build(table, work)
        try:
            os.rename(work, place)
        except OSError:
            if not place.exists():
                raise
        _drop_older(place)
        return _load(place, table.version) or built
    except OSError as error:
        raise AnchorFoldError(f"the search cache in {place.parent} cannot be written: {error.strerror}.") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def build(table: PageTable, folder: Path | None) -> FlatIndex:
    """Copy all live vectors out of the table, in files of `folder` or in memory."""
    keys: list[tuple[int, str, int, str]] = []
    for batch in table.scan(["source", "document", "page", "kept"], "kept > 0"):
        rows = zip(*(batch[n].to_pylist() for n in ("kept", "source", "page", "document")), strict=True)
        keys.extend(rows)
    keys.sort()
    lengths = np.array([k[0] for k in keys], np.int64)
    starts = np.concatenate(([0], lengths.cumsum()))
    place = {(source, page): i for i, (_, source, page, _) in enumerate(keys)}
    dtype = np.float32 if table.settings.dtype == "float32" else np.float16
    shape = (int(starts[-1]), table.settings.dim)
    vectors = _array(folder, "vectors.npy", dtype, shape)
    codes = _array(folder, "codes.npy", np.int8, shape)
    largest = 1e-6
    for batch in table.scan(["source", "page", "vectors", "scales"], "kept > 0"):
        found, offsets = all_vectors_of(batch)
        largest = max(largest, float(np.abs(found).max(initial=0.0)))
        for row, key in enumerate(zip(batch["source"].to_pylist(), batch["page"].to_pylist(), strict=True)):
            at = place[key]
            vectors[starts[at] : starts[at + 1]] = found[offsets[row] : offsets[row + 1]]
    scale = largest / 127
    for start in range(0, shape[0], BLOCK):
        part = torch.from_numpy(vectors[start : start + BLOCK]).float()
        torch.from_numpy(codes[start : start + BLOCK]).copy_(part.div_(scale).round_())
    pages = pa.table(
        {
            "source": pa.array([k[1] for k in keys], pa.string()),
            "document": pa.array([k[3] for k in keys], pa.string()),
            "page": pa.array([k[2] for k in keys], pa.int32()),
        }
    )
    if folder is not None:
        np.save(folder / "lengths.npy", lengths)
        feather.write_feather(pages, folder / "pages.feather", compression="uncompressed")
        for array in (vectors, codes):
            if isinstance(array, np.memmap):
                array.flush()
        (folder / "about.json").write_text(json.dumps({"version": table.version, "scale": scale}))
    return FlatIndex(table.version, vectors, codes, lengths, scale, pages)


def _array(folder: Path | None, name: str, dtype: type, shape: tuple[int, int]) -> np.ndarray:
    if folder is None or 0 in shape:
        empty: np.ndarray = np.zeros(shape, dtype)
        if folder is not None:
            np.save(folder / name, empty)
        return empty
    return np.lib.format.open_memmap(folder / name, "w+", dtype, shape)


def _load(place: Path, version: int) -> FlatIndex | None:
    try:
        if not all((place / name).is_file() for name in _FILES):
            return None
        about = json.loads((place / "about.json").read_text())
        lengths = np.load(place / "lengths.npy")
        vectors = _map(place / "vectors.npy")
        codes = _map(place / "codes.npy")
        pages = feather.read_table(place / "pages.feather", memory_map=True)
    except (OSError, ValueError, pa.ArrowException):
        return None  # half written or damaged: build it again
    whole = about.get("version") == version and lengths.sum() == len(vectors) == len(codes)
    if not whole or pages.num_rows != len(lengths):
        return None
    return FlatIndex(version, vectors, codes, lengths, float(about["scale"]), pages)


def _map(path: Path) -> np.ndarray:
    # torch wants arrays that it might write to; copy-on-write keeps the file safe.
    return np.load(path, mmap_mode="c") if path.stat().st_size > 4096 else np.load(path)


def _drop_older(place: Path) -> None:
    """Remove copies of other versions; a reader that still maps one keeps its pages until it lets go."""
    for other in place.parent.iterdir():
        if other != place and not other.name.startswith("new-"):
            shutil.rmtree(other, ignore_errors=True)
