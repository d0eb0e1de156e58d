"""Rows of a training set on the Hugging Face hub, and the slice of the ColPali training set for calibration.

Pages are assigned to the slice by a digest of their file names, so that all queries of a page are held out together
and a stream can be filtered. Rows that were read from the hub are cached.
"""

from __future__ import annotations

import hashlib
import io
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from anchorfold.backbones.weights import cache_folder
from anchorfold.errors import AnchorFoldError, first_line

TRAINING_SET = "vidore/colpali_train_set"  # the paper's calibration pairs are drawn from it
SEED = 42
PAGE_COLUMN = "image_filename"
# Shares of the pages that are excluded from training: 118,195 rows give about 1,180 pairs and 590 pages.
SLICES = {"pairs": (0.0, 0.01), "pages": (0.01, 0.015)}

Row = dict[str, Any]
Report = Callable[[str], None]


def is_training_set(name: str) -> bool:
    """Return whether this is the ColPali training set, on the hub or a local copy.

    >>> is_training_set("vidore/colpali_train_set"), is_training_set("./my-pages")
    (True, False)
    """
    return Path(name).name == Path(TRAINING_SET).name


def slice_of(page: str, seed: int = SEED) -> str | None:
    """Return `pairs` or `pages` for a held-out page, None for a page to train on.

    >>> from collections import Counter
    >>> sorted(Counter(slice_of(f"{n}.jpg") or "training" for n in range(10_000)).items())
    [('pages', 43), ('pairs', 116), ('training', 9841)]
    """
    number = int.from_bytes(hashlib.blake2b(f"{seed} {page}".encode(), digest_size=8).digest()) / 2**64
    return next((name for name, (low, high) in SLICES.items() if low <= number < high), None)


def sample_rows(
    name: str, count: int, columns: Sequence[str], part: str, seed: int = SEED, report: Report = lambda _: None
) -> Iterator[Row]:
    """Draw `count` rows uniformly that have a value in all of these columns.

    Args:
        name: data set on the hub, or folder of Parquet files.
        count: number of rows; fewer if the set is smaller.
        columns: required columns.
        part: slice of the ColPali training set to draw from; other sets have no slices.
        seed: random seed.
        report: called with the number of bytes before they are read.
    """
    import pyarrow.parquet as pq

    try:
        paths = parquet_paths(name)
        cache = cached_rows(paths, [count, list(columns), part if is_training_set(name) else "", seed])
        if cache is not None and cache.is_file():
            report(f"{name}: {count:,} rows from {cache}")
            yield from _rows_of(pq.ParquetFile(cache))
            return
        files = [_open(path) for path in paths]
        missing = [c for file in files[:1] for c in columns if c not in file.schema_arrow.names]
        if missing:
            raise AnchorFoldError(f"{name} has no column {missing[0]}: it needs {' and '.join(columns)}.")
        chosen = _choose_rows(name, files, count, columns, part, seed)
        if not chosen:
            raise AnchorFoldError(f"{name} contains no rows with {' and '.join(columns)}.")
        size = sum(_group_bytes(files[file], group, columns) for file, group in chosen)
        rows = sum(map(len, chosen.values()))
        report(f"{name}: reading {rows:,} rows in {len(chosen):,} row groups, {size:,} bytes")
        tables = (
            files[file].read_row_group(group, columns=list(columns)).take(numbers)
            for (file, group), numbers in chosen.items()
        )
        if cache is None:
            for table in tables:
                yield from _complete(table.to_pylist(), columns)
            return
        _write(cache, tables)
    except (ConnectionError, FileNotFoundError, OSError, ValueError) as error:
        if isinstance(error, AnchorFoldError):
            raise
        raise AnchorFoldError(f"{name} cannot be read as a dataset: {first_line(error)}.") from error
    yield from _complete(_rows_of(pq.ParquetFile(cache)), columns)


def training_images(name: str, count: int, seed: int = SEED, report: Report = lambda _: None) -> Iterator[Image.Image]:
    """Yield page images of a data set with a column `image`, for methods that need calibration."""
    for row in sample_rows(name, count, ("image",), "pages", seed, report):
        yield decode(row["image"])


def decode(cell: Any) -> Image.Image:
    """Decode an image as stored by data sets: `{"bytes": ..., "path": ...}`."""
    source = io.BytesIO(cell["bytes"]) if cell.get("bytes") is not None else cell["path"]
    with Image.open(source) as image:
        return image.convert("RGB")


def require_training_set() -> None:
    """Raise if the ColPali training set cannot be reached."""
    try:
        parquet_paths(TRAINING_SET)
    except (ConnectionError, FileNotFoundError, OSError, ValueError) as error:
        raise AnchorFoldError(f"{TRAINING_SET} cannot be reached: {first_line(error)}.") from error


def parquet_paths(name: str) -> list[str]:
    """Return the Parquet files of a training split; a hub address includes the revision."""
    try:
        from datasets import load_dataset_builder
    except ImportError as error:
        raise AnchorFoldError(
            "reading data sets requires the datasets library: pip install 'anchorfold[eval]'."
        ) from error
    paths = [str(path) for path in load_dataset_builder(name).config.data_files["train"]]
    if not all(path.endswith(".parquet") for path in paths):
        raise ValueError("its files are not Parquet")
    return paths


def cached_rows(paths: Sequence[str], key: Sequence[Any]) -> Path | None:
    """Return the cache file of rows that are read from the hub; None for local files."""
    if all(Path(path).exists() for path in paths):
        return None
    name = hashlib.blake2b(repr([*paths, *key]).encode(), digest_size=12).hexdigest()
    return cache_folder() / "training-rows" / f"{name}.parquet"


def _open(path: str) -> Any:
    import fsspec
    import pyarrow.parquet as pq

    return pq.ParquetFile(fsspec.open(path).open())


def _choose_rows(
    name: str, files: Sequence[Any], count: int, columns: Sequence[str], part: str, seed: int
) -> dict[tuple[int, int], list[int]]:
    """Draw rows by the columns other than images; return row numbers by (file, row group) in file order."""
    sliced = is_training_set(name)
    small = [c for c in columns if c != "image"] + ([PAGE_COLUMN] if sliced else [])
    candidates = []
    for number, file in enumerate(files):
        for group in range(file.num_row_groups):
            rows = range(file.metadata.row_group(group).num_rows)
            values = file.read_row_group(group, columns=small).to_pylist() if small else [{} for _ in rows]
            candidates += [
                (number, group, row) for row, cells in zip(rows, values, strict=True)
                if all(cell not in (None, "") for cell in cells.values())
                and (not sliced or slice_of(cells[PAGE_COLUMN]) == part)
            ]  # fmt: skip
    chosen: dict[tuple[int, int], list[int]] = {}
    for number, group, row in sorted(random.Random(seed).sample(candidates, min(count, len(candidates)))):
        chosen.setdefault((number, group), []).append(row)
    return chosen


def _group_bytes(file: Any, group: int, columns: Sequence[str]) -> int:
    metadata = file.metadata.row_group(group)
    chunks = (metadata.column(i) for i in range(metadata.num_columns))
    return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in columns)


def _write(cache: Path, tables: Iterator[Any]) -> None:
    import pyarrow.parquet as pq

    cache.parent.mkdir(parents=True, exist_ok=True)
    part = cache.with_suffix(".part")
    first = next(tables)
    with pq.ParquetWriter(part, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
    os.replace(part, cache)


def _rows_of(file: Any) -> Iterator[Row]:
    for batch in file.iter_batches(16):
        yield from batch.to_pylist()


def _complete(rows: Sequence[Row] | Iterator[Row], columns: Sequence[str]) -> Iterator[Row]:
    return (row for row in rows if all(row[c] is not None for c in columns))
