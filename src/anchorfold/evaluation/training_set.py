"""Rows of a training set on the hub, or of a folder of Parquet files: drawn uniformly, and no others are read."""

from __future__ import annotations

import io
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from PIL import Image

from anchorfold.errors import AnchorFoldError

TRAINING_SET = "vidore/colpali_train_set"  # the paper's calibration pairs are drawn from it
SEED = 42
AT_ONCE = 64  # rows; what is drawn is read in the order of the files, so many at a time


def training_images(name: str, count: int, seed: int = SEED) -> Iterator[Image.Image]:
    """Page images of a data set with a column `image`."""
    for row in draw_rows(name, count, ("image",), seed):
        yield decode(row["image"])


def draw_rows(name: str, count: int, columns: Sequence[str], seed: int = SEED) -> Iterator[dict[str, Any]]:
    """`count` rows, each as likely as any other, that have a value in all of these columns.

    Args:
        name: of a data set on the hub, or a folder.
        count: how many; fewer if the set is smaller.
        columns: which.
        seed: of the draw.
    """
    try:
        files = _parquet_files(name)
        edges = list(accumulate((file.metadata.num_rows for file in files), initial=0))
        missing = [c for file in files[:1] for c in columns if c not in file.schema_arrow.names]
    except (ConnectionError, FileNotFoundError, OSError, ValueError) as error:
        raise AnchorFoldError(f"{name} cannot be read as a dataset: {str(error).splitlines()[0]}.") from error
    if missing:
        raise AnchorFoldError(f"{name} has no column {missing[0]}: it needs {' and '.join(columns)}.")
    order = random.Random(seed).sample(range(edges[-1]), edges[-1])
    given = 0
    while order and given < count:
        at_once = min(AT_ONCE, count - given)
        numbers, order = sorted(order[:at_once]), order[at_once:]
        for number in numbers:
            file = bisect_right(edges, number) - 1
            row = _row(files[file], number - edges[file], columns)
            if all(row[c] not in (None, "") for c in columns):
                given += 1
                yield row
    if not given:
        raise AnchorFoldError(f"{name} holds no rows with {' and '.join(columns)}.")


def decode(cell: Any) -> Image.Image:
    """An image as data sets store it: `{"bytes": ..., "path": ...}`."""
    source = io.BytesIO(cell["bytes"]) if cell.get("bytes") is not None else cell["path"]
    with Image.open(source) as image:
        return image.convert("RGB")


def _parquet_files(name: str) -> list[Any]:
    """The open files of a data set's training split."""
    try:
        from datasets import load_dataset_builder
    except ImportError as error:
        raise AnchorFoldError("data sets need their library: pip install 'anchorfold[eval]'.") from error
    import fsspec
    import pyarrow.parquet as pq

    paths = load_dataset_builder(name).config.data_files["train"]
    if not all(str(path).endswith(".parquet") for path in paths):
        raise ValueError("its files are not Parquet")
    return [pq.ParquetFile(fsspec.open(str(path)).open()) for path in paths]


def _row(file: Any, number: int, columns: Sequence[str]) -> dict[str, Any]:
    """One row of a Parquet file; only the group that it is in is read."""
    groups = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
    edges = list(accumulate(groups, initial=0))
    group = bisect_right(edges, number) - 1
    table = file.read_row_group(group, columns=list(columns))
    row: dict[str, Any] = table.slice(number - edges[group], 1).to_pylist()[0]
    return row
