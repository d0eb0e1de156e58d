"""All pages in one Parquet file, a row a page.

import numpy as np, pyarrow.parquet as pq
table = pq.read_table("my.parquet")
row = table.slice(3, 1).to_pylist()[0]
vectors = np.array(row["vectors"], np.float32)  # (m, d)
print(row["document"], row["page"], vectors.shape)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from anchorfold.errors import AnchorFoldError
from anchorfold.index.export.exporter import Exporter
from anchorfold.index.store.schema import METADATA_KEY, all_vectors_of
from anchorfold.index.store.table import PageTable

COLUMNS = ("document", "page", "full", "anchors", "groups", "weights", "grid")


def export(table: PageTable, target: str | Path, progress: Callable[[int], None] | None = None) -> int:
    """Write document, page, vectors, anchors, groups, weights, grid and the number of vectors before compression."""
    target = Path(target)
    part = target.with_name(target.name + ".part")
    written = 0
    value = pa.float32() if table.settings.dtype == "float32" else pa.float16()
    kind = pa.list_(pa.list_(value, table.settings.dim))
    own = table.schema
    schema = pa.schema([*(own.field(c) for c in COLUMNS), pa.field("vectors", kind)], metadata={METADATA_KEY: table.settings.to_json()})  # fmt: skip  # noqa: E501
    try:
        with pq.ParquetWriter(part, schema, compression="zstd") as writer:
            for batch in table.encoded_pages([*COLUMNS, "vectors", "scales"]):
                if not batch.num_rows:
                    continue
                flat, offsets = all_vectors_of(batch)
                values = pa.array(flat.astype(value.to_pandas_dtype()).reshape(-1))
                inner = pa.FixedSizeListArray.from_arrays(values, type=kind.value_type)
                vectors = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), inner, type=kind)
                columns = [batch[c] for c in COLUMNS]
                writer.write_table(pa.Table.from_arrays([*columns, vectors], schema=schema))
                written += batch.num_rows
                if progress is not None:
                    progress(written)
        os.replace(part, target)
    except OSError as error:
        raise AnchorFoldError(f"{target} cannot be written: {(error.strerror or str(error)).lower()}.") from error
    finally:
        part.unlink(missing_ok=True)
    return written


EXPORTER = Exporter("parquet", export)
