"""The compressor of an index: its options checked, and compared with those of an index that exists."""

from __future__ import annotations

from typing import Any

from anchorfold.compressors import BudgetCompressor, FullIndex, compressor
from anchorfold.errors import AnchorFoldError, MismatchError
from anchorfold.index.store.schema import IndexSettings

DEFAULT_RATIO = 0.2  # near lossless


def budget_options(method: str, ratio: float | None, cap: int | None) -> dict[str, Any]:
    """A compressor's options from a ratio or a cap, checked."""
    if method == FullIndex.name:
        return {}
    if ratio is not None and cap is not None:
        raise AnchorFoldError("give a ratio or a cap, not both.")
    options: dict[str, Any] = {"cap": cap} if cap is not None else {"ratio": DEFAULT_RATIO if ratio is None else ratio}
    try:
        made = compressor(method, **options)
    except ValueError as error:
        raise AnchorFoldError(str(error)) from error
    if not isinstance(made, BudgetCompressor):
        raise AnchorFoldError(f"{method} must be calibrated before it can index: choose another method.")
    return options


def require_same(settings: IndexSettings, method: str, options: dict[str, Any], dtype: str) -> None:
    """Refuse to go on with another compressor than an index was made with."""
    if (settings.method, settings.options, settings.dtype) != (method, options, dtype):
        raise MismatchError(
            f"the index was made with {settings.method} {settings.options} as {settings.dtype}, not with {method} "
            f"{options} as {dtype}: leave these options out, or choose another folder."
        )
