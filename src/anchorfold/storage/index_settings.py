"""The settings that an index is created with."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from anchorfold.errors import DamagedError, MismatchError
from anchorfold.quantization.codec import Coding

REQUIRED: dict[str, type] = {"model": str, "fingerprint": str, "dim": int, "method": str, "options": dict}


@dataclass(frozen=True)
class IndexSettings:
    """The settings of an index, stored in its database and in every vector file.

    Attributes:
        model: name or path for `anchorfold.load`.
        fingerprint: digest of the model's weights.
        dim: dimension of the vectors.
        method: name of the compressor.
        options: options of the compressor.
        bits: bits per vector component.
        seed: seed of the rotation used below 16 bits.
        thumbnails: whether a thumbnail of each page is stored.
        provenance: whether the patches behind each vector are stored.
        text: whether the text of pages is stored.
        ocr: whether pages without a text layer are read by OCR.
        load_options: options for `anchorfold.load`.
        layers: layer settings of the backbone when the index was created.

    Examples:
        >>> index.settings.method, index.settings.options
        ('anchorfold', {'ratio': 0.1})
    """

    model: str
    fingerprint: str
    dim: int
    method: str
    options: dict[str, Any]
    bits: int = 16
    seed: int = 0
    thumbnails: bool = True
    provenance: bool = True
    text: bool = False
    ocr: bool = False
    load_options: dict[str, Any] = field(default_factory=dict)
    layers: dict[str, Any] | None = None

    @property
    def coding(self) -> Coding:
        """How vectors are stored."""
        return Coding(self.dim, self.bits, self.seed)

    @property
    def type_name(self) -> str:
        """The stored type, for display."""
        return {32: "float32", 16: "float16", 1: "1 bit"}.get(self.bits, f"{self.bits} bits")

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> IndexSettings:
        """From the dictionary that `dataclasses.asdict` gives."""
        if unknown := sorted(data.keys() - {known.name for known in fields(cls)}):
            raise MismatchError(
                f"the index was created by a newer version of anchorfold (unknown settings: {', '.join(unknown)}): "
                "upgrade anchorfold."
            )
        for name, kind in REQUIRED.items():
            if not isinstance(data.get(name), kind):
                raise DamagedError(f"the settings of the index are damaged: {name!r} is {data.get(name)!r}.")
        return cls(**data)
