"""All vectors in one NumPy archive.

import numpy as np
data = np.load("my.npz")
page = 3
vectors = data["vectors"][data["offsets"][page] : data["offsets"][page + 1]]  # (m, d)
print(data["document"][page], data["page"][page], vectors.shape)
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from anchorfold.errors import AnchorFoldError
from anchorfold.index.export.exporter import Exporter
from anchorfold.index.store.schema import all_vectors_of
from anchorfold.index.store.table import PageTable

Done = Callable[[int], None]


def export(table: PageTable, target: str | Path, progress: Done | None = None) -> int:
    """Write `vectors (V, d)`, `offsets (P + 1,)`, `document (P,)` and `page (P,)`; nothing is held in memory whole."""
    target = Path(target)
    part = target.with_name(target.name + ".part")
    dtype = np.dtype(np.float32 if table.settings.dtype == "float32" else np.float16)
    documents: list[str] = []
    pages: list[int] = []
    lengths: list[int] = []
    total = sum(sum(b["kept"].to_pylist()) for b in table.encoded_pages(["kept"]))
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            with archive.open("vectors.npy", "w", force_zip64=True) as file:
                header = {"descr": dtype.str, "fortran_order": False, "shape": (total, table.settings.dim)}
                np.lib.format.write_array_header_2_0(file, header)
                for batch in table.encoded_pages(["document", "page", "vectors", "scales"]):
                    vectors, places = all_vectors_of(batch)
                    file.write(vectors.astype(dtype).tobytes())
                    lengths += np.diff(places).tolist()
                    documents += batch["document"].to_pylist()
                    pages += batch["page"].to_pylist()
                    if progress is not None:
                        progress(len(pages))
            small = {
                "offsets": np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
                "document": np.array(documents, dtype=str),
                "page": np.array(pages, np.int32),
            }
            for name, array in small.items():
                with archive.open(f"{name}.npy", "w") as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
        os.replace(part, target)
    except OSError as error:
        raise AnchorFoldError(f"{target} cannot be written: {(error.strerror or str(error)).lower()}.") from error
    finally:
        part.unlink(missing_ok=True)
    return len(pages)


EXPORTER = Exporter("npz", export)
