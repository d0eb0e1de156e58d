"""A Lance dataset (`pages.lance`), or a table of a LanceDB folder; a row a page, with a column of lists of vectors."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from anchorfold.errors import AnchorFoldError
from anchorfold.vectors.arrow_rows import Columns, choose_columns, row_names, row_page
from anchorfold.vectors.source import VectorPage, VectorSource, Wanted

BATCH = 16


class LanceSource(VectorSource):
    """The table is the folder's only one, or the one that is named as its collection."""

    what = "a Lance dataset or LanceDB folder"

    @classmethod
    def claims(cls, address: str) -> bool:
        """A folder with that ending, or with such folders in it."""
        path = Path(address)
        return path.is_dir() and (path.suffix == ".lance" or next(path.glob("*.lance"), None) is not None)

    @property
    def identity(self) -> str:
        """The dataset's folder."""
        return os.path.join(*map(str, self._place)) + ".lance"

    @cached_property
    def _place(self) -> tuple[Path, str]:
        """The folder of the database, and the table's name."""
        path = Path(os.path.abspath(self.address))
        if path.suffix == ".lance":
            return path.parent, path.stem
        tables = sorted(child.stem for child in path.glob("*.lance"))
        name = self.fields.collection or (tables[0] if len(tables) == 1 else None)
        if name not in tables:
            raise AnchorFoldError(f"{self.address} holds the tables {', '.join(tables)}: name one with --collection.")
        return path, name

    @cached_property
    def _table(self) -> Any:
        try:
            import lancedb
        except ImportError as error:
            raise AnchorFoldError("reading Lance tables requires lancedb: pip install 'anchorfold[lance]'.") from error
        folder, name = self._place
        try:
            return lancedb.connect(folder).open_table(name)
        except (OSError, ValueError, RuntimeError) as error:
            raise AnchorFoldError(f"{self.identity} cannot be read ({str(error).splitlines()[0]}).") from error

    def __len__(self) -> int:
        return int(self._table.count_rows())

    def pages(self, wanted: Wanted) -> Iterator[VectorPage]:
        """A few rows at a time; first the names alone, so that vectors of pages that are there already are not read."""
        columns = choose_columns(self._table.schema, self.fields, self.identity)
        chosen = [(row, page) for row, page in self._names(columns) if wanted(*page)]
        for start in range(0, len(chosen), BATCH):
            names = dict(chosen[start : start + BATCH])
            query = self._table.take_row_ids(list(names)).select([columns.vectors]).with_row_id()
            table = query.to_arrow()
            positions = {row: i for i, row in enumerate(table["_rowid"].to_pylist())}
            for row, page in names.items():
                yield row_page(table, positions[row], columns, *page)

    def _names(self, columns: Columns) -> list[tuple[int, tuple[str, int]]]:
        """Every row's id, document and page, in the order of the ids: a scan promises none."""
        _, table = self._place
        rows: list[tuple[int, tuple[str, int]]] = []
        query = self._table.search().select(columns.names or {"nothing": "0"}).with_row_id(True)
        for batch in query.to_batches(batch_size=4096):
            rows += zip(batch["_rowid"].to_pylist(), row_names(batch, columns, 1, table), strict=True)
        rows.sort()
        return rows if columns.names else [(row, (table, i)) for i, (row, _) in enumerate(rows, 1)]
