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
from anchorfold.index.store.snapshot import Snapshot

TOLD_EVERY = 256  # pages


def export(snapshot: Snapshot, target: str | Path, progress: Callable[[int], None] | None = None) -> int:
    """Write `vectors (V, d)`, `offsets (P + 1,)`, `document (P,)` and `page (P,)`; nothing is held in memory whole."""
    target = Path(target)
    part = target.with_name(target.name + ".part")
    settings = snapshot.settings
    dtype = np.dtype(np.float32 if settings.bits == 32 else np.float16)
    documents: list[str] = []
    pages: list[int] = []
    lengths: list[int] = []
    total = sum(page.kept for page in snapshot.pages())
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            with archive.open("vectors.npy", "w", force_zip64=True) as file:
                header = {"descr": dtype.str, "fortran_order": False, "shape": (total, settings.dim)}
                np.lib.format.write_array_header_2_0(file, header)
                for page in snapshot.pages():
                    file.write(page.vectors.astype(dtype).tobytes())
                    lengths.append(page.kept)
                    documents.append(page.document)
                    pages.append(page.page)
                    if progress is not None and len(pages) % TOLD_EVERY == 0:
                        progress(len(pages))
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
