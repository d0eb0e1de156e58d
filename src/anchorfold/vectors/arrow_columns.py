"""Columns of Arrow tables with one row per page, for Parquet and Lance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.vectors.vector_source import (
    DOCUMENT_FIELDS,
    PAGE_FIELDS,
    FieldNames,
    VectorPage,
    choose_field,
    page_number,
)

if TYPE_CHECKING:
    import pyarrow as pa

BATCH = 16  # rows with vectors that are read at once


@dataclass(frozen=True)
class ArrowColumns:
    """Names of the columns with vectors, document name and page number; the latter two are optional."""

    vectors: str
    document: str | None
    page: str | None

    @property
    def names(self) -> list[str]:
        """The columns that identify a page."""
        return [name for name in (self.document, self.page) if name is not None]


def choose_columns(schema: pa.Schema, fields: FieldNames, where: str) -> ArrowColumns:
    """Choose the columns given by the user, or detect them."""
    candidates = [name for name in schema.names if _is_multivector(schema.field(name).type)]
    if fields.vectors is None and len(candidates) != 1:
        problem = (
            f"several columns contain vectors ({', '.join(candidates)})"
            if candidates
            else "no column contains lists of vectors"
        )
        raise AnchorFoldError(f"{where}: {problem}; name one with --vectors-field, of {', '.join(schema.names)}.")
    vectors = choose_field(fields.vectors, candidates, schema.names, where) or candidates[0]
    if vectors not in candidates:
        kind = schema.field(vectors).type
        raise AnchorFoldError(f"{where}: the column {vectors} contains {kind}, not lists of vectors.")
    document = choose_field(fields.document, DOCUMENT_FIELDS, schema.names, where)
    return ArrowColumns(vectors, document, choose_field(fields.page, PAGE_FIELDS, schema.names, where))


def row_names(batch: pa.RecordBatch, columns: ArrowColumns, first: int, document: str) -> Iterator[tuple[str, int]]:
    """Yield the document and page of each row; without columns, `document` and the row number from `first`."""
    documents: Sequence[object] = batch[columns.document].to_pylist() if columns.document else ()
    pages: Sequence[object] = batch[columns.page].to_pylist() if columns.page else ()
    for i in range(batch.num_rows):
        name = str(documents[i]) if columns.document else document
        number = first + i
        if columns.page:
            number = page_number(pages[i], f"{name}, row {first + i}")
        elif columns.document:
            number = 1
        yield name, number


def row_page(batch: pa.RecordBatch | pa.Table, row: int, columns: ArrowColumns, document: str, page: int) -> VectorPage:
    """Read the vectors of one row."""
    import pyarrow.compute as pc

    value = batch[columns.vectors][row]
    if not value.is_valid:
        return VectorPage(document, page, None, "no vectors")
    lists = value.values
    lengths = pc.unique(pc.list_value_length(lists)).to_pylist()
    if len(lengths) != 1 or lengths[0] is None:
        return VectorPage(document, page, None, "vectors of different dimensions" if lengths else "no vectors")
    flat = lists.flatten().to_numpy(zero_copy_only=False)
    return VectorPage(document, page, np.asarray(flat).reshape(len(lists), lengths[0]))


def _is_multivector(kind: pa.DataType) -> bool:
    from pyarrow import types

    def is_list(kind: pa.DataType) -> bool:
        return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))

    if not is_list(kind) or not is_list(kind.value_type):
        return False
    component = kind.value_type.value_type
    return bool(types.is_floating(component) or types.is_integer(component))
