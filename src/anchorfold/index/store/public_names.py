"""Names of documents that may be shown to clients of a server: unique, stable, without absolute paths."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count


def public_name(name: str, taken: Callable[[str], bool]) -> str:
    """Choose the public name of a new document.

    A relative name is public as it is. Of an absolute path, or one outside the current folder, as many of its last
    components are shown as are needed to make it unique; a number is appended if that is not enough.

    Args:
        name: the name as the user gave it.
        taken: whether a public name is in use.

    Examples:
        >>> public_name("reports/a.pdf", {"a.pdf"}.__contains__)
        'reports/a.pdf'
        >>> public_name("/home/me/x/a.pdf", {"a.pdf"}.__contains__)
        'x/a.pdf'
    """
    return next(candidate for candidate in _candidates(name) if not taken(candidate))


def _candidates(name: str) -> Iterator[str]:
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")] or [name]
    outside = os.path.isabs(name) or name.startswith("..")
    if not outside:
        yield name
    else:
        # The first component of an absolute path is never shown.
        for length in range(1, max(2, len(parts))):
            yield "/".join(parts[-length:])
    stem, ending = os.path.splitext(parts[-1] if outside else name)
    for number in count(2):
        yield f"{stem} ({number}){ending}"
