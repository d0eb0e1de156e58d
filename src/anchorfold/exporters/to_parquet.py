"""Export all pages to one Parquet file, one row per page.

import numpy as np, pyarrow.parquet as pq
table = pq.read_table("my.parquet")
row = table.slice(3, 1).to_pylist()[0]
vectors = np.array(row["vectors"], np.float32)  # (m, d)
print(row["document"], row["page"], vectors.shape)
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.errors import MissingExtraError
from anchorfold.exporters.exporter import Exporter, replace_file
from anchorfold.storage.page_content import PageContent
from anchorfold.storage.protocol import PageCollection

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    raise MissingExtraError("pyarrow (for Parquet files)", "parquet", error) from None

BATCH = 256  # pages per row group
METADATA_KEY = b"anchorfold"
_TILE = pa.struct([("rows", pa.int32()), ("columns", pa.int32())] + [(s, pa.float32()) for s in ("left", "top", "right", "bottom")])  # fmt: skip  # noqa: E501
NUMBERS = {"anchors": pa.list_(pa.int32()), "groups": pa.list_(pa.int16()), "weights": pa.list_(pa.float32())}


def export(index: PageCollection, target: str | Path, progress: Callable[[int], None] | None = None) -> int:
    """Write document, page, vectors, anchors, groups, weights, grid and the number of vectors before compression.

    The provenance columns are empty if the index stores no provenance.
    """
    settings = index.settings
    kind = pa.list_(pa.list_(pa.float32() if settings.bits == 32 else pa.float16(), settings.dim))
    schema = pa.schema(
        [
            ("document", pa.string()), ("page", pa.int32()), ("full", pa.int32()), *NUMBERS.items(),
            ("grid", pa.list_(_TILE)), ("vectors", kind),
        ],
        metadata={METADATA_KEY: json.dumps(asdict(settings))},
    )  # fmt: skip
    pages, written = index.pages(), 0
    with replace_file(Path(target)) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        while batch := list(islice(pages, BATCH)):
            writer.write_table(_table(batch, schema))
            written += len(batch)
            if progress is not None:
                progress(written)
    return written


def _table(pages: list[PageContent], schema: pa.Schema) -> pa.Table:
    columns: dict[str, Any] = {name: [getattr(p, name) for p in pages] for name in ("document", "page", "full")}
    known = [p.provenance if p.settings.provenance else None for p in pages]
    for name, kind in NUMBERS.items():
        columns[name] = pa.array([[] if k is None else k[name] for k in known], kind)
    grids = [None if k is None or k["grid"] is None else [asdict(tile) for tile in k["grid"].tiles] for k in known]
    columns["grid"] = pa.array(grids, schema.field("grid").type)
    kind = schema.field("vectors").type
    vectors = np.concatenate([p.vectors for p in pages]).astype(kind.value_type.value_type.to_pandas_dtype())
    inner = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), type=kind.value_type)
    offsets = pa.array(np.cumsum([0, *(p.kept for p in pages)]), pa.int32())
    columns["vectors"] = pa.ListArray.from_arrays(offsets, inner, type=kind)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


EXPORTER = Exporter("parquet", export)
