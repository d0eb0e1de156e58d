"""The contract of an export target, and the register that finds one by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorfold._registry import Registry
from anchorfold.errors import AnchorFoldError


@dataclass(frozen=True)
class CollectionSize:
    """Estimated bytes of a collection: `vectors` as they are uploaded, their `quantized` copy, and the `payload`."""

    vectors: int
    quantized: int
    payload: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.vectors + self.quantized + self.payload


@dataclass(frozen=True)
class Exporter:
    """A target: `write(snapshot, target, progress=..., **options)` returns the number of pages written.

    `snapshot` is one version of the index, a `Snapshot`: its `settings` and `pages()` are what a target needs;
    a page has `source`, `document`, `page`, `vectors (m, d)` in float32 whatever the bits, and `provenance`.
    `progress` is called with the number of pages so far. A target that is no file, such as a database, has an address,
    and may sort pages into a `collection`. `bits` are the bits per vector component that it can store.
    `options` are further keyword arguments that `write` takes, of those that the command line offers: `quantization`,
    `thumbnails`, and `announce`, which is called with a `CollectionSize` before anything is uploaded.
    """

    name: str
    write: Callable[..., int]
    is_file: bool = True
    has_collections: bool = False
    bits: tuple[int, ...] = (16, 32)
    options: tuple[str, ...] = ()

    def target(self, index: Path, file: Path | None, address: str | None) -> str:
        """Where to write: the file beside the index if nobody says; an address must be given."""
        if self.is_file:
            return str(file or index.resolve().with_suffix(f".{self.name}"))
        if address is None:
            raise AnchorFoldError(
                f"exporting to {self.name} needs --url: its address, or a folder if it has a local engine."
            )
        return address

    def require_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that are given (not None); refuse those that the target does not take."""
        given = {name: value for name, value in options.items() if value is not None}
        for name in given:
            if name not in self.options:
                raise AnchorFoldError(f"--{name} cannot be used with {self.name}: leave it out.")
        return given


EXPORTERS: Registry[Exporter] = Registry(
    "anchorfold.exporters",
    "export target",
    {name: f"anchorfold.index.export.to_{name}:EXPORTER" for name in ("npz", "parquet", "qdrant")},
)
