"""How many vectors a page may keep."""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation


def check_budget(ratio: float | None = None, cap: int | None = None) -> None:
    """Raise unless exactly one of a ratio in (0, 1] and a cap of at least 1 is given.

    >>> check_budget(ratio=0.1)
    >>> check_budget(ratio=2)
    Traceback (most recent call last):
    ValueError: ratio must lie above 0 and at most at 1, got 2.
    """
    if (ratio is None) == (cap is None):
        raise ValueError("give exactly one of ratio (a share of the page's vectors) and cap (a number of vectors).")
    if ratio is not None:
        exact = _decimal(ratio)
        if not exact.is_finite() or not 0 < exact <= 1:
            raise ValueError(f"ratio must lie above 0 and at most at 1, got {ratio!r}.")
    elif isinstance(cap, bool) or int(cap) != cap or cap < 1:  # type: ignore[arg-type]
        raise ValueError(f"cap must be a whole number of at least 1, got {cap!r}.")


def vector_budget(n: int, ratio: float | None = None, cap: int | None = None) -> int:
    """Vectors for a page of `n` tokens: `ceil(ratio n)` in exact decimal arithmetic, or `min(n, cap)`.

    >>> vector_budget(100, ratio=0.07)
    7
    >>> vector_budget(1024, cap=128)
    128
    """
    check_budget(ratio, cap)
    if n < 0:
        raise ValueError(f"a page cannot have {n} tokens.")
    if cap is not None:
        return min(int(n), int(cap))
    return math.ceil(_decimal(ratio) * int(n))


def _decimal(ratio: object) -> Decimal:
    # The decimal that the user wrote: 0.07 as a binary fraction lies above 7/100, and its ceiling would be 8.
    try:
        return Decimal(str(ratio))
    except InvalidOperation:
        raise ValueError(f"ratio must be a number, got {ratio!r}.") from None
