"""An index as version 0.1 wrote it: a LanceDB table."""

import json
from dataclasses import asdict

import lancedb
import numpy as np
import pyarrow as pa

_TILE = pa.struct([("rows", pa.int32()), ("columns", pa.int32())] + [(s, pa.float32()) for s in ("left", "top", "right", "bottom")])  # fmt: skip  # noqa: E501
_NUMPY = {"float16": np.float16, "float32": np.float32, "int8": np.int8}
_ARROW = {"float16": pa.float16(), "float32": pa.float32(), "int8": pa.int8()}


def write_old_index(folder, rows, settings, dtype="float16"):
    """Pages in the schema of format 1, with a search cache beside them."""
    data = asdict(settings)
    for name in ("bits", "seed", "provenance"):
        del data[name]
    schema = pa.schema(
        [
            ("source", pa.string()), ("document", pa.string()), ("page", pa.int32()), ("pages", pa.int32()),
            ("digest", pa.string()), ("size", pa.int64()), ("modified", pa.int64()), ("live", pa.bool_()),
            ("full", pa.int32()), ("kept", pa.int32()), ("grid", pa.list_(_TILE)),
            ("vectors", pa.list_(pa.list_(_ARROW[dtype], settings.dim))), ("scales", pa.list_(pa.float32())),
            ("anchors", pa.list_(pa.int32())), ("groups", pa.list_(pa.int16())), ("weights", pa.list_(pa.float16())),
            ("thumbnail", pa.binary()), ("problem", pa.string()),
        ],
        metadata={b"anchorfold": json.dumps({**data, "dtype": dtype, "format": 1}).encode()},
    )  # fmt: skip
    table = lancedb.connect(folder).create_table("pages", schema=schema)
    for row in rows:
        table.add(pa.Table.from_pylist([_record(row, dtype)], schema=schema))
    (folder / "cache").mkdir()
    (folder / "cache" / "vectors.npy").write_bytes(b"x" * 1000)


def _record(row, dtype):
    page = row.encoded
    record = {k: getattr(row, k) for k in ("source", "document", "page", "pages", "digest", "size", "modified", "live", "thumbnail", "problem")}  # fmt: skip  # noqa: E501
    if page is None:
        return {**record, "full": 0, "kept": 0, "grid": None, "vectors": [], "scales": [], "anchors": [], "groups": [], "weights": []}  # fmt: skip  # noqa: E501
    vectors, scales = page.vectors.numpy(), []
    if dtype == "int8":
        scales = (np.abs(vectors).max(1) / 127).astype(np.float32)
        vectors = np.rint(vectors / scales[:, None])
    return {
        **record, "full": page.full, "kept": len(page),
        "grid": None if page.grid is None else [asdict(tile) for tile in page.grid.tiles],
        "vectors": [list(v) for v in vectors.astype(_NUMPY[dtype])],
        "scales": list(scales), "anchors": page.anchors.tolist(), "groups": page.groups.tolist(),
        "weights": list(page.weights.numpy().astype(np.float16)),
    }  # fmt: skip
