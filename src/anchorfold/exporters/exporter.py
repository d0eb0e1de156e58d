"""Interface of export targets, and the registry of their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchorfold._registry import Registry
from anchorfold.errors import AnchorFoldError, os_reason


@dataclass(frozen=True)
class CollectionSize:
    """Estimated bytes of a collection: uploaded `vectors`, their `quantized` copy, and the `payload`."""

    vectors: int
    quantized: int
    payload: int

    @property
    def total(self) -> int:
        """Total bytes."""
        return self.vectors + self.quantized + self.payload


@dataclass(frozen=True)
class Exporter:
    """Export target: `write(index, target, progress=..., **options)` returns the number of pages written.

    `index` is a `PageCollection`, one commit of the index, with `settings` and `pages()`. A page is a `PageContent`
    with `source`, `document`, `page`, `vectors` `(m, d)` (always float32) and `provenance`. `progress` is called with
    the number of pages so far.
    A target that is not a file, such as a database, has an address and may support collections.
    `bits` are the supported bits per vector component.
    `options` are the command-line options that `write` accepts as keyword arguments: `quantization`, `thumbnails`, and
    `announce`, which is called with a `CollectionSize` before the upload starts.
    """

    name: str
    write: Callable[..., int]
    is_file: bool = True
    has_collections: bool = False
    bits: tuple[int, ...] = (16, 32)
    options: tuple[str, ...] = ()

    def target(self, index: str, file: Path | None, address: str | None) -> str:
        """Return the output path, by default the path of the index with another suffix, or the address."""
        if self.is_file:
            return str(file or Path(index).with_suffix(f".{self.name}"))
        if address is None:
            raise AnchorFoldError(
                f"exporting to {self.name} needs --url: its address, or a folder if it has a local engine."
            )
        return address

    def require_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options that are not None; raise AnchorFoldError if the target does not support one."""
        given = {name: value for name, value in options.items() if value is not None}
        for name in given:
            if name not in self.options:
                raise AnchorFoldError(f"--{name} cannot be used with {self.name}: leave it out.")
        return given


@contextmanager
def replace_file(target: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces the target at the end; after an error the target is unchanged.

    Raises:
        AnchorFoldError: the file cannot be written.
    """
    part = target.with_name(target.name + ".part")
    try:
        yield part
        os.replace(part, target)
    except OSError as error:
        raise AnchorFoldError(f"{target} cannot be written: {os_reason(error)}.") from error
    finally:
        part.unlink(missing_ok=True)


EXPORTERS: Registry[Exporter] = Registry(
    "anchorfold.exporters",
    "export target",
    {name: f"anchorfold.exporters.to_{name}:EXPORTER" for name in ("npz", "parquet", "qdrant")},
)
