"""Options of `anchorfold.load` that an index may store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# These select the weights. All other options depend on the machine (`device`, `dtype`) or let a checkpoint run code
# (`trust_remote_code`, `allow_pickle`): an index may come from an untrusted source, so only the caller can set them.
STORED_OPTIONS = {"revision": str, "bidirectional": bool, "merge_adapters": bool}


def select_stored(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that may be stored in an index, and drop all others.

    Examples:
        >>> select_stored({"revision": "v1.3", "trust_remote_code": True})
        {'revision': 'v1.3'}
    """
    return {name: options[name] for name, kind in STORED_OPTIONS.items() if isinstance(options.get(name), kind)}
