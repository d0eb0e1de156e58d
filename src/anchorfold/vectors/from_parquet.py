"""Parquet files or folders of them: one row per page, with a column of lists of vectors."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from anchorfold.errors import AnchorFoldError, MissingExtraError
from anchorfold.vectors.arrow_columns import BATCH, ArrowColumns, choose_columns, row_names, row_page
from anchorfold.vectors.vector_source import PageFilter, VectorPage, VectorSource

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile


class ParquetSource(VectorSource):
    """Rows of Parquet files. Row groups without needed pages are not read."""

    description = "a Parquet file or a folder of them"

    @classmethod
    def accepts(cls, address: str) -> bool:
        """Return whether this is a .parquet file or a folder that contains one."""
        path = Path(address)
        return (path.is_file() and path.suffix.lower() == ".parquet") or next(path.glob("*.parquet"), None) is not None

    @cached_property
    def _files(self) -> list[Path]:
        path = Path(self.address)
        return sorted(path.glob("*.parquet")) if path.is_dir() else [path]

    def _open(self, path: Path) -> ParquetFile:
        try:  # here, since every source is imported to detect the right one
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise MissingExtraError("pyarrow (for Parquet files)", "parquet", error) from None
        try:
            return pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)  # limits memory
        except (OSError, pa.ArrowInvalid) as error:
            raise AnchorFoldError(f"{path} cannot be read as Parquet ({str(error).splitlines()[0]}).") from error

    def __len__(self) -> int:
        return sum(self._open(path).metadata.num_rows for path in self._files)

    def pages(self, is_needed: PageFilter) -> Iterator[VectorPage]:
        """Read the row groups one after the other."""
        for path in self._files:
            with self._open(path) as file:
                columns = choose_columns(file.schema_arrow, self.fields, str(path))
                first = 1
                for group in range(file.num_row_groups):
                    yield from _read_group(file, group, columns, first, path.stem, is_needed)
                    first += file.metadata.row_group(group).num_rows


def _read_group(
    file: ParquetFile, group: int, columns: ArrowColumns, first: int, document: str, is_needed: PageFilter
) -> Iterator[VectorPage]:
    names: list[tuple[str, int]] = []
    if columns.names:
        for batch in file.iter_batches(BATCH, [group], columns.names):
            names += row_names(batch, columns, first + len(names), document)
    else:
        names = [(document, first + i) for i in range(file.metadata.row_group(group).num_rows)]
    needed = [is_needed(*name) for name in names]
    if not any(needed):
        return
    row = 0
    for batch in file.iter_batches(BATCH, [group], [columns.vectors]):
        for i in range(batch.num_rows):
            if needed[row + i]:
                yield row_page(batch, i, columns, *names[row + i])
        row += batch.num_rows
