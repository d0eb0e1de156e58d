"""An index into other tools: one file each."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from anchorfold.errors import AnchorFoldError

TARGETS = {"npz": "to_npz", "parquet": "to_parquet", "qdrant": "to_qdrant"}


def exporter(name: str) -> Callable[..., int]:
    """The function that writes to a target: `(table, target, **options)` to the number of pages written."""
    if name not in TARGETS:
        raise AnchorFoldError(f"cannot export to {name!r}: choose one of {', '.join(TARGETS)}.")
    return import_module(f"anchorfold.index.export.{TARGETS[name]}").export
