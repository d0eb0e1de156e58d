"""What sources of Arrow tables share: which columns hold what, and the vectors of a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anchorfold.errors import AnchorFoldError
from anchorfold.vectors.source import DOCUMENT_FIELDS, PAGE_FIELDS, Fields, VectorPage, choose_field, page_number


@dataclass(frozen=True)
class Columns:
    """The columns of a table that has a row a page; None if it has none for the name or the number."""

    vectors: str
    document: str | None
    page: str | None

    @property
    def names(self) -> list[str]:
        """Those that say which page a row is."""
        return [name for name in (self.document, self.page) if name is not None]


def choose_columns(schema: pa.Schema, fields: Fields, where: str) -> Columns:
    """The columns that the user named, or that look right."""
    lists = [name for name in schema.names if _is_multivector(schema.field(name).type)]
    if fields.vectors is None and len(lists) != 1:
        problem = f"several columns hold vectors ({', '.join(lists)})" if lists else "no column holds lists of vectors"
        raise AnchorFoldError(f"{where}: {problem}; name one with --vectors, of {', '.join(schema.names)}.")
    vectors = choose_field(fields.vectors, lists, schema.names, where) or lists[0]
    if vectors not in lists:
        raise AnchorFoldError(
            f"{where}: the column {vectors} holds {schema.field(vectors).type}, not lists of vectors."
        )
    document = choose_field(fields.document, DOCUMENT_FIELDS, schema.names, where)
    return Columns(vectors, document, choose_field(fields.page, PAGE_FIELDS, schema.names, where))


def row_names(batch: pa.RecordBatch, columns: Columns, first: int, document: str) -> Iterator[tuple[str, int]]:
    """For each row its document and page; `document` and the row's number from `first` where no column says so."""
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


def row_page(batch: pa.RecordBatch | pa.Table, row: int, columns: Columns, document: str, page: int) -> VectorPage:
    """One row's vectors."""
    value = batch[columns.vectors][row]
    if not value.is_valid:
        return VectorPage(document, page, None, "it has no vectors")
    lists = value.values
    lengths = pc.unique(pc.list_value_length(lists)).to_pylist()
    if len(lengths) != 1 or lengths[0] is None:
        problem = "its vectors have different dimensions" if lengths else "it has no vectors"
        return VectorPage(document, page, None, problem)
    flat = lists.flatten().to_numpy(zero_copy_only=False)
    return VectorPage(document, page, np.asarray(flat).reshape(len(lists), lengths[0]))


def _is_multivector(kind: pa.DataType) -> bool:
    inner = kind.value_type if _is_list(kind) else None
    return inner is not None and _is_list(inner) and (
        pa.types.is_floating(inner.value_type) or pa.types.is_integer(inner.value_type)
    )  # fmt: skip


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
