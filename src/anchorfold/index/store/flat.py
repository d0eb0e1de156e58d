"""A flat, memory-mapped copy of all live vectors, made for scanning. The table is the truth; this can go at any time.

Pages lie sorted by their number of vectors: a run of pages of equal length is one dense block, whose maxima need
no ragged bookkeeping. `vectors` are floats for exact scores, `codes` the same as int8 on one scale for a first scan.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from filelock import FileLock
from pyarrow import feather

from anchorfold.index.store.schema import all_vectors_of
from anchorfold.index.store.table import PageTable

CACHE = "cache"
LAYOUT = 1
BUILD_LOCK = "build.lock"
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
    """The flat copy of the table's current version, built first if need be.

    It is built in memory where the folder cannot be written: an index that this user may only read, or a full disk.
    """
    target = table.folder / CACHE / f"{table.version}-{LAYOUT}"
    flat = _load(target, table.version)
    if flat is not None:
        return flat
    try:
        target.parent.mkdir(exist_ok=True)
        with FileLock(target.parent / BUILD_LOCK):  # whoever else wants this version waits for it
            return _load(target, table.version) or _build_in(target, table)
    except OSError:
        return build(table, None)


def _build_in(target: Path, table: PageTable) -> FlatIndex:
    """Build beside the target and put it there whole; the caller holds the lock."""
    for other in target.parent.glob("new-*"):  # of a process that died: one that lives would hold the lock
        shutil.rmtree(other, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix="new-", dir=target.parent))
    try:
        flat = build(table, work)
        if target.exists():  # damaged, else it would have been loaded
            shutil.rmtree(target)
        os.rename(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for other in target.parent.iterdir():  # a reader that still maps an older one keeps its pages until it lets go
        if other != target and other.is_dir():
            shutil.rmtree(other, ignore_errors=True)
    return flat


class _Rows:
    """An array `(rows, d)` that is filled piece by piece: in memory, or in a `.npy` file.

    Files are written, not mapped: a full disk is then an error that can be handled, where a map would end the process.
    """

    def __init__(self, folder: Path | None, name: str, dtype: type, shape: tuple[int, int]) -> None:
        self.path = None if folder is None else folder / name
        if self.path is None:
            self.array: np.ndarray = np.zeros(shape, dtype)
            return
        self.dtype, self.row_bytes = np.dtype(dtype), np.dtype(dtype).itemsize * shape[1]
        with open(self.path, "wb") as file:
            header = {"descr": self.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            self.start = file.tell()
            file.truncate(self.start + shape[0] * self.row_bytes)
        self.file = open(self.path, "r+b")  # noqa: SIM115

    def put(self, row: int, values: np.ndarray) -> None:
        """Set the rows from `row` on."""
        if self.path is None:
            self.array[row : row + len(values)] = values
        else:
            self.file.seek(self.start + row * self.row_bytes)
            self.file.write(values.astype(self.dtype, copy=False).tobytes())

    def finish(self) -> np.ndarray:
        """The whole array."""
        if self.path is None:
            return self.array
        self.file.close()
        return _map(self.path)

    def close(self) -> None:
        """Let go of the file, whatever could not be written."""
        if self.path is not None:
            with suppress(OSError):
                self.file.close()


def build(table: PageTable, folder: Path | None) -> FlatIndex:
    """Copy all live vectors out of the table, into files of `folder` or into memory."""
    keys: list[tuple[int, str, int, str]] = []
    for batch in table.encoded_pages(["source", "document", "page", "kept"]):
        keys.extend(zip(*(batch[n].to_pylist() for n in ("kept", "source", "page", "document")), strict=True))
    keys.sort()
    lengths = np.array([k[0] for k in keys], np.int64)
    starts = np.concatenate(([0], lengths.cumsum()))
    number_of = {(source, page): i for i, (_, source, page, _) in enumerate(keys)}
    dtype = np.float32 if table.settings.dtype == "float32" else np.float16
    shape = (int(starts[-1]), table.settings.dim)
    with closing(_Rows(folder, "vectors.npy", dtype, shape)) as rows:
        largest = 1e-6
        for batch in table.encoded_pages(["source", "page", "vectors", "scales"]):
            stored, offsets = all_vectors_of(batch)
            largest = max(largest, float(np.abs(stored).max(initial=0.0)))
            for row, key in enumerate(zip(batch["source"].to_pylist(), batch["page"].to_pylist(), strict=True)):
                rows.put(int(starts[number_of[key]]), stored[offsets[row] : offsets[row + 1]])
        vectors = rows.finish()
    scale = largest / 127
    with closing(_Rows(folder, "codes.npy", np.int8, shape)) as rows:
        for start in range(0, shape[0], BLOCK):
            block = torch.from_numpy(vectors[start : start + BLOCK]).float() / scale  # a copy: vectors stay as they are
            rows.put(start, block.round_().to(torch.int8).numpy())
        codes = rows.finish()
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
        (folder / "about.json").write_text(json.dumps({"version": table.version, "scale": scale}))
    return FlatIndex(table.version, vectors, codes, lengths, scale, pages)


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
