"""Indexes of version 0.1, a LanceDB table: read page by page into the present format, without encoding again."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from anchorfold.errors import AnchorFoldError, MismatchError
from anchorfold.index.coding import BITS
from anchorfold.index.store.catalogue import HEAD, LOGS
from anchorfold.index.store.durable import sync_folder
from anchorfold.index.store.faults import storage_errors
from anchorfold.index.store.lock import writer_lock
from anchorfold.index.store.pages import PageRow
from anchorfold.index.store.settings import FORMAT, IndexSettings
from anchorfold.index.store.snapshot import SEGMENTS
from anchorfold.index.store.table import PageTable, is_old

WORK = "converting"  # the new index while it is not whole
OLD_TYPES = {"float32": 32, "float16": 16, "int8": 8}
BATCH = 256  # pages read and written at a time


def convert_index(
    folder: Path,
    bits: int | None = None,
    progress: Callable[[int], None] | None = None,
    waiting: Callable[[str], None] | None = None,
) -> int:
    """`convert`, when no other process is writing; `waiting` is told whom it waits for."""
    if bits is not None and bits not in BITS:
        raise AnchorFoldError(f"vectors cannot be stored in {bits} bits: choose one of {', '.join(map(str, BITS))}.")
    require_old(folder)
    with writer_lock(folder, -1, waiting):
        require_old(folder)
        return convert(folder, bits, progress)


def require_old(folder: Path) -> None:
    """Refuse what needs no conversion."""
    if not is_old(folder):
        PageTable.open(folder)  # says so if there is none
        raise AnchorFoldError(f"{folder} has the present format already: nothing was changed.")


def convert(folder: Path, bits: int | None = None, progress: Callable[[int], None] | None = None) -> int:
    """Bring an index of version 0.1 to the present format in its place; returns its pages. The caller holds the lock.

    The old table stays until the new index is whole and on the disk; a conversion that is cut short is begun again.

    Args:
        folder: the index.
        bits: a stored number takes from now on; as before if None.
        progress: called with the number of pages so far.
    """
    with storage_errors(folder):
        table = _open(folder)
        settings = settings_of(table.schema.metadata or {})
        if bits is not None:
            settings = replace(settings, bits=bits)
        for left_over in (WORK, SEGMENTS, LOGS):
            shutil.rmtree(folder / left_over, ignore_errors=True)
        work = PageTable.create(folder / WORK, settings)
        rows, pages = stored_rows(table), 0
        while batch := list(islice(rows, BATCH)):
            work.append(batch)
            pages += len(batch)
            if progress is not None:
                progress(pages)
        for name in (SEGMENTS, LOGS, HEAD):  # the head last: from then on the folder is the new index
            os.rename(folder / WORK / name, folder / name)
            sync_folder(folder)
        shutil.rmtree(folder / WORK)
    PageTable.open(folder).tidy()
    return pages


def _open(folder: Path) -> Any:
    # By default a scan reads up to two gigabytes ahead: pages are large, and memory should stay flat.
    os.environ.setdefault("LANCE_DEFAULT_IO_BUFFER_SIZE", str(64 << 20))
    try:
        import lancedb
    except ImportError as error:
        raise AnchorFoldError("reading an index of version 0.1 needs LanceDB: pip install lancedb.") from error
    return lancedb.connect(folder).open_table("pages")


def settings_of(metadata: dict[bytes, bytes]) -> IndexSettings:
    """What the old index was made with, from its schema."""
    if b"anchorfold" not in metadata:
        raise MismatchError("the table called pages was not written by anchorfold.")
    data = json.loads(metadata[b"anchorfold"])
    if data.pop("format") != 1:
        raise MismatchError("the table has a format that this version of anchorfold does not know: use the one that made it.")  # fmt: skip  # noqa: E501
    bits = OLD_TYPES[data.pop("dtype", "float16")]
    return IndexSettings.from_dict({**data, "bits": bits, "format": FORMAT})


def stored_rows(table: Any) -> Iterator[PageRow]:
    """All pages of an old table, staged ones too."""
    reader = table.search().select(table.schema.names).to_batches(batch_size=64)
    for batch in reader:
        for row in range(batch.num_rows):
            yield row_of(batch, row)


def row_of(batch: Any, row: int) -> PageRow:
    """A page of an old table."""
    import torch

    from anchorfold.page import EncodedPage, PatchGrid, Tile

    plain = ("source", "document", "page", "pages", "digest", "size", "modified", "live", "thumbnail", "problem")
    facts = {name: batch[name][row].as_py() for name in plain}
    encoded = None
    if batch["kept"][row].as_py():
        stored = batch["vectors"][row].values
        vectors = _array(stored.flatten()).reshape(-1, stored.type.list_size).astype(np.float32)
        scales = _array(batch["scales"][row].values)
        if len(scales):
            vectors *= scales[:, None]
        tiles = batch["grid"][row].as_py()
        anchors, groups = (_array(batch[name][row].values).astype(np.int64) for name in ("anchors", "groups"))
        encoded = EncodedPage(
            torch.from_numpy(vectors),
            torch.from_numpy(anchors),
            torch.from_numpy(groups),
            torch.from_numpy(_array(batch["weights"][row].values).astype(np.float32)),
            None if tiles is None else PatchGrid(tuple(Tile(**tile) for tile in tiles)),
        )
    return PageRow(**{**facts, "thumbnail": facts["thumbnail"] or b""}, encoded=encoded)


def _array(values: Any) -> np.ndarray:
    array: np.ndarray = values.to_numpy(zero_copy_only=False)
    return array
