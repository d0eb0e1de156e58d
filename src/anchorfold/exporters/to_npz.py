"""Export all vectors to one NumPy archive.

import numpy as np
data = np.load("my.npz")
page = 3
vectors = data["vectors"][data["offsets"][page] : data["offsets"][page + 1]]  # (m, d)
print(data["document"][page], data["page"][page], vectors.shape)
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from anchorfold.exporters.exporter import Exporter, replace_file
from anchorfold.storage.protocol import PageCollection

PROGRESS_PAGES = 256  # pages per call of `progress`


def export(index: PageCollection, target: str | Path, progress: Callable[[int], None] | None = None) -> int:
    """Write `vectors` `(V, d)`, streamed page by page, `offsets` `(P + 1,)`, `document` `(P,)` and `page` `(P,)`."""
    settings = index.settings
    dtype = np.dtype(np.float32 if settings.bits == 32 else np.float16)
    documents: list[str] = []
    pages: list[int] = []
    lengths: list[int] = []
    total = sum(page.kept for page in index.pages())
    with (
        replace_file(Path(target)) as file_path,
        zipfile.ZipFile(file_path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
    ):
        with archive.open("vectors.npy", "w", force_zip64=True) as file:
            header = {"descr": dtype.str, "fortran_order": False, "shape": (total, settings.dim)}
            np.lib.format.write_array_header_2_0(file, header)
            for page in index.pages():
                file.write(page.vectors.astype(dtype).tobytes())
                lengths.append(page.kept)
                documents.append(page.document)
                pages.append(page.page)
                if progress is not None and len(pages) % PROGRESS_PAGES == 0:
                    progress(len(pages))
        if progress is not None:
            progress(len(pages))
        arrays = {
            "offsets": np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))),
            "document": np.array(documents, dtype=str),
            "page": np.array(pages, np.int32),
        }
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return len(pages)


EXPORTER = Exporter("npz", export)
