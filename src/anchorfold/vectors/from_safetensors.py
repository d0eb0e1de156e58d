"""A safetensors file: a tensor a page under its name, or all vectors in one tensor with offsets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from anchorfold.errors import AnchorFoldError
from anchorfold.vectors.source import VectorPage, VectorSource, Wanted, choose_field, split_name

OFFSETS = "offsets"


class SafetensorsSource(VectorSource):
    """Layouts: `{name: (N, d), ...}`; or `vectors (V, d)` and `offsets (P + 1,)`, pages numbered from 1."""

    what = "a safetensors file"

    @classmethod
    def claims(cls, address: str) -> bool:
        """A file with that ending."""
        return address.lower().endswith(".safetensors") and os.path.isfile(address)

    @property
    def identity(self) -> str:
        """The file."""
        return os.path.abspath(self.address)

    @cached_property
    def _file(self) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            return safe_open(self.address, "pt")  # NumPy knows no bfloat16
        except (OSError, SafetensorError) as error:
            raise AnchorFoldError(f"{self.address} cannot be read as safetensors ({error}).") from error

    @cached_property
    def _names(self) -> list[str]:
        return sorted(self._file.keys())

    def __len__(self) -> int:
        return len(self._file.get_tensor(OFFSETS)) - 1 if OFFSETS in self._names else len(self._names)

    def pages(self, wanted: Wanted) -> Iterator[VectorPage]:
        """Tensor by tensor, or slice by slice."""
        if OFFSETS in self._names:
            vectors = choose_field(self.fields.vectors, ("vectors",), self._names, self.address)
            if vectors is None:
                raise AnchorFoldError(f"{self.address} has offsets but no vectors: name their tensor with --vectors.")
            rows = self._file.get_slice(vectors)
            offsets = self._file.get_tensor(OFFSETS).tolist()
            document = Path(self.address).stem
            for page, (start, stop) in enumerate(pairwise(offsets), 1):
                if wanted(document, page):
                    yield VectorPage(document, page, _as_numpy(rows[start:stop]))
            return
        for name in self._names:
            document, page = split_name(name)
            if wanted(document, page):
                yield VectorPage(document, page, _as_numpy(self._file.get_tensor(name)))


def _as_numpy(tensor: torch.Tensor) -> Any:
    return tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()
