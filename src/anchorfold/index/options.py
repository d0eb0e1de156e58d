"""What an index is made with: a compressor from a name and a budget, and agreement with an index that exists."""

from __future__ import annotations

import json
from typing import Any

from anchorfold.compressors import COMPRESSORS, AnchorFold, Compressor
from anchorfold.errors import AnchorFoldError, MismatchError
from anchorfold.index.coding import BITS
from anchorfold.index.store.settings import IndexSettings

DEFAULT_RATIO = 0.2  # near lossless


def choose_compressor(method: str | None = None, ratio: float | None = None, cap: int | None = None) -> Compressor:
    """A compressor by name and budget; `AnchorFold(ratio=0.2)` if nothing is given."""
    if ratio is not None and cap is not None:
        raise AnchorFoldError("give a ratio or a cap, not both.")
    kind = COMPRESSORS[method or AnchorFold.name]
    try:
        if ratio is None and cap is None:
            try:
                return kind.with_budget()
            except ValueError:  # it wants a budget
                ratio = DEFAULT_RATIO
        return kind.with_budget(ratio, cap)
    except ValueError as error:
        raise AnchorFoldError(str(error)) from error


def require_usable(compressor: Compressor, bits: int | None) -> None:
    """Refuse what no index can be made with."""
    if bits is not None and bits not in BITS:
        raise AnchorFoldError(f"vectors cannot be stored in {bits} bits: choose one of {', '.join(map(str, BITS))}.")
    if not compressor.ready:
        raise AnchorFoldError(
            f"{compressor.name} must be calibrated before it can index: call its calibrate_on() with about "
            f"{compressor.calibration_pages} held-out pages, or choose another method."
        )


def as_stored(options: dict[str, Any]) -> dict[str, Any]:
    """Options as JSON gives them back."""
    stored: dict[str, Any] = json.loads(json.dumps(options))
    return stored


def require_same(settings: IndexSettings, compressor: Compressor | None, bits: int | None) -> None:
    """Refuse to go on with another compressor or width than an index was made with; None means whatever it has."""
    if compressor is not None:
        wanted = (compressor.name, as_stored(compressor.options))
        if wanted != (settings.method, settings.options):
            raise MismatchError(
                f"the index was made with {settings.method} {settings.options}, not with {wanted[0]} {wanted[1]}: "
                "leave these options out, or choose another folder."
            )
    if bits is not None and bits != settings.bits:
        raise MismatchError(
            f"the index was made with {settings.bits} bits a number, not with {bits}: leave that option out, or choose "
            "another folder."
        )
