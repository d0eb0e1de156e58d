"""Parquet: a file, or a folder of them; a row a page, with a column of lists of vectors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from anchorfold.errors import AnchorFoldError
from anchorfold.vectors.arrow_rows import Columns, choose_columns, row_names, row_page
from anchorfold.vectors.source import VectorPage, VectorSource, Wanted

BATCH = 16


class ParquetSource(VectorSource):
    """Row groups whose pages are all there already are not read."""

    what = "a Parquet file, or a folder of them"

    @classmethod
    def claims(cls, address: str) -> bool:
        """A file with that ending, or a folder with one in it."""
        path = Path(address)
        return (path.is_file() and path.suffix.lower() == ".parquet") or next(path.glob("*.parquet"), None) is not None

    @property
    def identity(self) -> str:
        """The file or folder."""
        return os.path.abspath(self.address)

    @cached_property
    def _files(self) -> list[Path]:
        path = Path(self.address)
        return sorted(path.glob("*.parquet")) if path.is_dir() else [path]

    def _open(self, path: Path) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)  # memory stays flat
        except (OSError, pa.ArrowInvalid) as error:
            raise AnchorFoldError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}).") from error

    def __len__(self) -> int:
        return sum(self._open(path).metadata.num_rows for path in self._files)

    def pages(self, wanted: Wanted) -> Iterator[VectorPage]:
        """Row group by row group."""
        for path in self._files:
            with self._open(path) as file:
                columns = choose_columns(file.schema_arrow, self.fields, str(path))
                first = 1
                for group in range(file.num_row_groups):
                    yield from _group(file, group, columns, first, path.stem, wanted)
                    first += file.metadata.row_group(group).num_rows


def _group(
    file: pq.ParquetFile, group: int, columns: Columns, first: int, document: str, wanted: Wanted
) -> Iterator[VectorPage]:
    # Without a name or number of their own the rows' numbers are all that is needed.
    rows = file.metadata.row_group(group).num_rows
    names: list[tuple[str, int]] = []
    if columns.names:
        for batch in file.iter_batches(BATCH, [group], columns.names):
            names += row_names(batch, columns, first + len(names), document)
    else:
        names = [(document, first + i) for i in range(rows)]
    chosen = [wanted(*name) for name in names]
    if not any(chosen):
        return
    row = 0
    for batch in file.iter_batches(BATCH, [group], [columns.vectors]):
        for i in range(batch.num_rows):
            if chosen[row + i]:
                yield row_page(batch, i, columns, *names[row + i])
        row += batch.num_rows
