"""Safetensors files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import torch

from anchorfold.errors import AnchorFoldError
from anchorfold.vectors.vector_source import ArraySource


class SafetensorsSource(ArraySource):
    """Tensors of a file, in the layouts of `ArraySource`."""

    description = "a safetensors file"

    @classmethod
    def accepts(cls, address: str) -> bool:
        """Return whether a file has the extension .safetensors."""
        return address.lower().endswith(".safetensors") and os.path.isfile(address)

    @cached_property
    def _file(self) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            return safe_open(self.address, "pt")  # NumPy has no bfloat16
        except (OSError, SafetensorError) as error:
            raise AnchorFoldError(f"{self.address} cannot be read as safetensors ({error}).") from error

    @cached_property
    def names(self) -> Sequence[str]:
        """Names of the tensors, sorted."""
        return sorted(self._file.keys())

    def read(self, name: str) -> np.ndarray:
        """Read a tensor."""
        return _as_numpy(self._file.get_tensor(name))

    @contextmanager
    def open_rows(self, name: str) -> Iterator[tuple[int, Callable[[int, int], np.ndarray]]]:
        """Open a tensor for reading by rows."""
        rows = self._file.get_slice(name)
        yield rows.get_shape()[0], lambda first, last: _as_numpy(rows[first:last])


def _as_numpy(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()
    return array
