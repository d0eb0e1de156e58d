"""The table of pages: its columns, and pages in and out of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from anchorfold.errors import MismatchError
from anchorfold.page import EncodedPage, PatchGrid, Tile

FORMAT = 1
METADATA_KEY = b"anchorfold"
DTYPES = ("float16", "float32", "int8")
_ARROW = {"float16": pa.float16(), "float32": pa.float32(), "int8": pa.int8()}
_TILE = pa.struct([("rows", pa.int32()), ("columns", pa.int32())] + [(s, pa.float32()) for s in ("left", "top", "right", "bottom")])  # fmt: skip  # noqa: E501


@dataclass(frozen=True)
class IndexSettings:
    """What an index was made with; kept in the table's own schema.

    `model` and `load_options` are what `anchorfold.load` takes, `fingerprint` is a digest of the weights, `dim` the
    vectors' dimension, `method` and `options` the compressor, `layers` the backbone's layer settings at that time.
    Indexes of version 0.1 have `window`, `steps` and `bidirectional` instead of `layers` and `load_options`.

    >>> index.settings.method, index.settings.options
    ('anchorfold', {'ratio': 0.1})
    """

    model: str
    fingerprint: str
    dim: int
    method: str
    options: dict[str, Any]
    window: tuple[int, int] = (0, 0)
    steps: int = 0
    dtype: str = "float16"
    thumbnails: bool = True
    bidirectional: bool | None = None
    load_options: dict[str, Any] = field(default_factory=dict)
    layers: dict[str, Any] | None = None
    format: int = FORMAT

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_schema(cls, schema: pa.Schema) -> IndexSettings:
        """From a table's schema; refuses tables that are not ours, or of another version."""
        raw = (schema.metadata or {}).get(METADATA_KEY)
        if raw is None:
            raise MismatchError("the table called pages was not written by anchorfold.")
        data = json.loads(raw)
        if data.get("format") != FORMAT:
            raise MismatchError(
                f"the index has format {data.get('format')}, this version of anchorfold reads {FORMAT}: use the "
                "version that made it, or index the documents into a new folder."
            )
        found = cls(**{**data, "window": tuple(data["window"])})
        if not schema.equals(page_schema(found)):
            raise MismatchError(
                "the table's columns are not those that its settings promise: use the anchorfold that made it."
            )
        return found


@dataclass(frozen=True)
class PageRow:
    """One page as it is stored. `page` counts from 1; a page that could not be read has no vectors and a `problem`."""

    source: str
    document: str
    page: int
    pages: int
    digest: str
    size: int
    modified: int
    live: bool
    encoded: EncodedPage | None
    thumbnail: bytes = b""
    problem: str | None = None


def page_schema(settings: IndexSettings) -> pa.Schema:
    """Columns of the table."""
    vectors = pa.list_(pa.list_(_ARROW[settings.dtype], settings.dim))
    return pa.schema(
        [
            ("source", pa.string()),  # the file, absolute
            ("document", pa.string()),  # its name as given
            ("page", pa.int32()),  # from 1
            ("pages", pa.int32()),  # of the document
            ("digest", pa.string()),  # of the file's content
            ("size", pa.int64()),
            ("modified", pa.int64()),  # nanoseconds
            ("live", pa.bool_()),  # false while a newer version of a document is being written
            ("full", pa.int32()),  # vectors before compression
            ("kept", pa.int32()),  # and after
            ("grid", pa.list_(_TILE)),
            ("vectors", vectors),
            ("scales", pa.list_(pa.float32())),  # of int8 vectors; empty otherwise
            ("anchors", pa.list_(pa.int32())),
            ("groups", pa.list_(pa.int16())),  # each patch's vector, -1 if dropped
            ("weights", pa.list_(pa.float16())),  # and its share in it
            ("thumbnail", pa.binary()),
            ("problem", pa.string()),
        ],
        metadata={METADATA_KEY: settings.to_json().encode()},
    )


def quantise(vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`(m, d)` floats to int8 codes and `(m,)` scales."""
    scales = np.maximum(np.abs(vectors).max(1, initial=0.0), 1e-12) / 127
    return np.rint(vectors / scales[:, None]).astype(np.int8), scales.astype(np.float32)


def to_table(rows: Sequence[PageRow], settings: IndexSettings) -> pa.Table:
    """Rows as Arrow columns."""
    schema = page_schema(settings)
    pages = [r.encoded for r in rows]
    stored, scales = [], []
    for page in pages:
        vectors = np.zeros((0, settings.dim), np.float32) if page is None else page.vectors.numpy()
        if vectors.shape[1] != settings.dim:
            raise MismatchError(
                f"the index holds vectors of dimension {settings.dim}, the model gives {vectors.shape[1]}."
            )
        codes, scale = quantise(vectors) if settings.dtype == "int8" else (vectors.astype(settings.dtype), np.zeros(0))
        stored.append(codes)
        scales.append(scale)

    def ragged(parts: Sequence[np.ndarray], kind: pa.DataType) -> pa.Array:
        offsets = np.cumsum([0, *(len(p) for p in parts)], dtype=np.int32)
        flat = np.concatenate(parts) if parts else np.zeros(0)
        if flat.ndim == 2:
            values = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), type=kind.value_type)
        else:
            values = pa.array(flat, type=kind.value_type)
        return pa.ListArray.from_arrays(pa.array(offsets), values, type=kind)

    def part(name: str, dtype: type) -> list[np.ndarray]:
        return [np.zeros(0, dtype) if p is None else getattr(p, name).numpy().astype(dtype) for p in pages]

    plain = ("source", "document", "page", "pages", "digest", "size", "modified", "live", "thumbnail", "problem")
    columns: dict[str, Any] = {name: [getattr(r, name) for r in rows] for name in plain}
    columns["full"] = [0 if p is None else p.full for p in pages]
    columns["kept"] = [0 if p is None else len(p) for p in pages]
    columns["grid"] = [None if p is None or p.grid is None else [asdict(t) for t in p.grid.tiles] for p in pages]
    columns["vectors"] = ragged(stored, schema.field("vectors").type)
    columns["scales"] = ragged(scales, schema.field("scales").type)
    columns["anchors"] = ragged(part("anchors", np.int32), schema.field("anchors").type)
    columns["groups"] = ragged(part("groups", np.int16), schema.field("groups").type)
    columns["weights"] = ragged(part("weights", np.float16), schema.field("weights").type)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def vectors_of(batch: pa.RecordBatch | pa.Table, row: int) -> np.ndarray:
    """`(m, d)` vectors of one row: as stored, or float32 from int8 codes."""
    stored = batch["vectors"][row].values
    dim = stored.type.list_size
    vectors = stored.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
    if vectors.dtype == np.int8:
        return vectors.astype(np.float32) * numpy_of(batch["scales"][row])[:, None]
    return vectors


def all_vectors_of(batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """`(V, d)` vectors of all rows below each other, as `vectors_of` gives them, and the rows' `(n + 1,)` offsets."""
    lists = batch["vectors"]
    offsets = lists.offsets.to_numpy() - (lists.offsets[0].as_py() if len(lists) else 0)
    stored = lists.flatten()
    vectors = stored.flatten().to_numpy(zero_copy_only=False).reshape(-1, stored.type.list_size)
    if vectors.dtype == np.int8:
        return vectors.astype(np.float32) * batch["scales"].flatten().to_numpy(zero_copy_only=False)[:, None], offsets
    return vectors, offsets


def numpy_of(scalar: Any) -> np.ndarray:
    """A list scalar as an array."""
    return scalar.values.to_numpy(zero_copy_only=False)


def encoded_of(batch: pa.RecordBatch | pa.Table, row: int) -> EncodedPage:
    """One row as an encoded page in float32."""
    tiles = batch["grid"][row].as_py()
    return EncodedPage(
        torch.from_numpy(vectors_of(batch, row).astype(np.float32)),
        torch.from_numpy(numpy_of(batch["anchors"][row]).astype(np.int64)),
        torch.from_numpy(numpy_of(batch["groups"][row]).astype(np.int64)),
        torch.from_numpy(numpy_of(batch["weights"][row]).astype(np.float32)),
        None if tiles is None else PatchGrid(tuple(Tile(**t) for t in tiles)),
    )
