"""Number of vectors to keep per page."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation

from anchorfold.errors import InvalidArgumentError


def check_budget(ratio: float | None = None, cap: int | None = None) -> None:
    """Raise ValueError unless exactly one of a ratio in (0, 1] and a cap of at least 1 is given.

    Examples:
        >>> check_budget(ratio=0.1)
        >>> check_budget(ratio=2)
        Traceback (most recent call last):
        anchorfold.errors.InvalidArgumentError: ratio must be in (0, 1], got 2.
    """
    if (ratio is None) == (cap is None):
        raise InvalidArgumentError(
            "give exactly one of ratio (share of the page's vectors) and cap (number of vectors)."
        )
    if ratio is not None:
        exact = _decimal(ratio)
        if not exact.is_finite() or not 0 < exact <= 1:
            raise InvalidArgumentError(f"ratio must be in (0, 1], got {ratio!r}.")
    elif isinstance(cap, bool) or int(cap) != cap or cap < 1:  # type: ignore[arg-type]
        raise InvalidArgumentError(f"cap must be an integer of at least 1, got {cap!r}.")


def vector_budget(n: int, ratio: float | None = None, cap: int | None = None) -> int:
    """Return the number of vectors for a page of `n` tokens: `ceil(ratio n)` in decimal arithmetic, or `min(n, cap)`.

    Examples:
        >>> vector_budget(100, ratio=0.07), vector_budget(1024, cap=128)
        (7, 128)
    """
    check_budget(ratio, cap)
    if n < 0:
        raise InvalidArgumentError(f"the number of tokens must be at least 0, got {n}.")
    return min(int(n), int(cap)) if cap is not None else math.ceil(_decimal(ratio) * int(n))


def _decimal(ratio: object) -> Decimal:
    # The decimal number as written: 0.07 in binary is larger than 7/100, and its ceiling would be 8.
    try:
        return Decimal(str(ratio))
    except InvalidOperation:
        raise InvalidArgumentError(f"ratio must be a number, got {ratio!r}.") from None
