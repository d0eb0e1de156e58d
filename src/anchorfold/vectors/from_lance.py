"""Lance datasets and tables of LanceDB folders: one row per page, with a column of lists of vectors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from anchorfold.errors import AnchorFoldError
from anchorfold.vectors.arrow_columns import BATCH, ArrowColumns, choose_columns, row_names, row_page
from anchorfold.vectors.vector_source import PageFilter, VectorPage, VectorSource


class LanceSource(VectorSource):
    """Rows of the only table of a folder, or of the table given as collection."""

    description = "a Lance dataset or LanceDB folder"

    @classmethod
    def accepts(cls, address: str) -> bool:
        """Return whether this is a .lance folder or a folder that contains one."""
        path = Path(address)
        return path.is_dir() and (path.suffix == ".lance" or next(path.glob("*.lance"), None) is not None)

    @property
    def identity(self) -> str:
        """Absolute path of the dataset."""
        return os.path.join(*map(str, self._location)) + ".lance"

    @cached_property
    def _location(self) -> tuple[Path, str]:
        """The folder of the database and the name of the table."""
        path = Path(os.path.abspath(self.address))
        if path.suffix == ".lance":
            return path.parent, path.stem
        tables = sorted(child.stem for child in path.glob("*.lance"))
        name = self.fields.collection or (tables[0] if len(tables) == 1 else None)
        if name not in tables:
            raise AnchorFoldError(f"{self.address} has the tables {', '.join(tables)}: name one with --collection.")
        return path, name

    @cached_property
    def _table(self) -> Any:
        try:
            import lancedb
        except ImportError as error:
            raise AnchorFoldError("reading Lance tables requires lancedb: pip install 'anchorfold[lance]'.") from error
        folder, name = self._location
        try:
            return lancedb.connect(folder).open_table(name)
        except (OSError, ValueError, RuntimeError) as error:
            raise AnchorFoldError(f"{self.identity} cannot be read ({str(error).splitlines()[0]}).") from error

    def __len__(self) -> int:
        return int(self._table.count_rows())

    def pages(self, is_needed: PageFilter) -> Iterator[VectorPage]:
        """Read the names of all rows, then the vectors of the needed ones in batches."""
        columns = choose_columns(self._table.schema, self.fields, self.identity)
        needed = [(row, page) for row, page in self._names(columns) if is_needed(*page)]
        for start in range(0, len(needed), BATCH):
            names = dict(needed[start : start + BATCH])
            table = self._table.take_row_ids(list(names)).select([columns.vectors]).with_row_id().to_arrow()
            positions = {row: i for i, row in enumerate(table["_rowid"].to_pylist())}
            for row, page in names.items():
                yield row_page(table, positions[row], columns, *page)

    def _names(self, columns: ArrowColumns) -> list[tuple[int, tuple[str, int]]]:
        """Return id, document and page of every row, sorted by id: a scan has no defined order."""
        _, table = self._location
        rows: list[tuple[int, tuple[str, int]]] = []
        query = self._table.search().select(columns.names or {"nothing": "0"}).with_row_id(True)
        for batch in query.to_batches(batch_size=4096):
            rows += zip(batch["_rowid"].to_pylist(), row_names(batch, columns, 1, table), strict=True)
        rows.sort()
        return rows if columns.names else [(row, (table, i)) for i, (row, _) in enumerate(rows, 1)]
