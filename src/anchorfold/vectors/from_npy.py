"""A folder of .npy files, one `(N, d)` array a page, also in folders of folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from anchorfold.vectors.npy_format import read_array
from anchorfold.vectors.source import VectorPage, VectorSource, Wanted, split_name


class NpySource(VectorSource):
    """Names say the page where they can: `report.pdf/3.npy` or `report_page_3.npy`; others are page 1 of themselves."""

    what = "a folder of .npy files, one a page"

    @classmethod
    def claims(cls, address: str) -> bool:
        """A folder with such a file in it, or in one of its folders."""
        return os.path.isdir(address) and next(Path(address).rglob("*.npy"), None) is not None

    @property
    def identity(self) -> str:
        """The folder."""
        return os.path.abspath(self.address)

    @cached_property
    def _names(self) -> list[str]:
        root = Path(self.address)
        return sorted(path.relative_to(root).as_posix() for path in root.rglob("*.npy"))

    def __len__(self) -> int:
        return len(self._names)

    def pages(self, wanted: Wanted) -> Iterator[VectorPage]:
        """File by file."""
        for name in self._names:
            document, page = split_name(name.removesuffix(".npy"))
            if wanted(document, page):
                path = Path(self.address) / name
                try:
                    with path.open("rb") as file:
                        vectors = read_array(file, path.stat().st_size)
                    yield VectorPage(document, page, vectors)
                except (OSError, ValueError, EOFError, MemoryError) as error:
                    yield VectorPage(document, page, None, f"{name} cannot be read ({error})")
