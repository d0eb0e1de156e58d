"""What an index was made with."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from anchorfold.errors import MismatchError
from anchorfold.index.coding import Coding

FORMAT = 2  # 1 was a LanceDB table: `anchorfold convert` reads it


@dataclass(frozen=True)
class IndexSettings:
    """What an index was made with; it stands in the log.

    `model` and `load_options` are what `anchorfold.load` takes, `fingerprint` is a digest of the weights, `dim` the
    vectors' dimension, `method` and `options` the compressor, `layers` the backbone's layer settings at that time;
    `bits` a stored number takes, `seed` that of the rotation below 16; whether thumbnails, provenance and the `text` of
    pages are kept, and whether pages without a text layer are read by `ocr`.
    Indexes of version 0.1 have `window`, `steps` and `bidirectional` instead of `layers` and `load_options`.

    >>> index.settings.method, index.settings.options
    ('anchorfold', {'ratio': 0.1})
    """

    model: str
    fingerprint: str
    dim: int
    method: str
    options: dict[str, Any]
    window: tuple[int, int] = (0, 0)
    steps: int = 0
    bits: int = 16
    seed: int = 0
    thumbnails: bool = True
    provenance: bool = True
    text: bool = False  # as in indexes that were made before there was text
    ocr: bool = False
    bidirectional: bool | None = None
    load_options: dict[str, Any] = field(default_factory=dict)
    layers: dict[str, Any] | None = None
    format: int = FORMAT

    @property
    def coding(self) -> Coding:
        """How vectors are stored."""
        return Coding(self.dim, self.bits, self.seed)

    @property
    def type_name(self) -> str:
        """The stored type as people read it."""
        return {32: "float32", 16: "float16", 1: "1 bit"}.get(self.bits, f"{self.bits} bits")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> IndexSettings:
        """From what `dataclasses.asdict` and JSON made of one; refuses another format."""
        if data.get("format") != FORMAT:
            raise MismatchError(
                f"the index has format {data.get('format')}, this version of anchorfold reads {FORMAT}: use the "
                "version that made it, or index the documents into a new folder."
            )
        if unknown := sorted(data.keys() - {known.name for known in fields(cls)}):
            names = ", ".join(unknown)
            raise MismatchError(
                f"the index was made by a newer version of anchorfold (its settings have {names}): use that one."
            )
        return cls(**{**data, "window": tuple(data["window"])})
