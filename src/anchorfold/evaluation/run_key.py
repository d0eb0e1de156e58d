"""What a run's scores depend on: two runs may share a folder only if all of it is the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from anchorfold import __version__
from anchorfold.backbones.base import Retriever
from anchorfold.compressors import Compressor
from anchorfold.evaluation.corpus import Corpus

NAMED = 3  # differences that a message spells out


def run_key(
    corpus: Corpus, model: Retriever, compressors: Mapping[str, Compressor], calibrated_on: str = ""
) -> dict[str, Any]:
    """Everything that decides a run's vectors and scores, as JSON of at most two levels."""
    layers = {name: value for name, value in asdict(model.settings).items() if name != "source"}
    key = {
        "anchorfold": __version__,
        "model": f"{model.family} {model.fingerprint} in {model.dtype} on {model.device.type}",
        "layers": layers,
        "pixels of a page": model.page_pixels,
        "calibration": calibrated_on,
        "method": {label: f"{c.name} {c.options}" for label, c in compressors.items()},
        **corpus.unrendered.origin(),
        "queries": digest_of([vars(query) for query in corpus.queries]),
    }
    stored: dict[str, Any] = json.loads(json.dumps(key))  # as it comes back from a file: tuples are lists
    return stored


def digest_of(items: list[Any]) -> str:
    """How many there are, and a hash of what they are."""
    return f"{len(items)}, digest {hashlib.blake2b(json.dumps(items).encode(), digest_size=12).hexdigest()}"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What is not the same in two keys: what it was and what it is; empty if nothing is.

    >>> differences({"model": "a", "layers": {"steps": 6}}, {"model": "a", "layers": {"steps": 2}})
    'layers steps was 6, is 2 now'
    """
    old, new = _flat(before), _flat(now)
    names = [name for name in {**new, **old} if old.get(name) != new.get(name)]
    spelt = [f"{name} was {old.get(name, 'absent')}, is {new.get(name, 'absent')} now" for name in names[:NAMED]]
    return "; ".join([*spelt, *([f"and {len(names) - NAMED} more"] if len(names) > NAMED else [])])


def _flat(key: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in key.items():
        flat |= {f"{name} {part}": v for part, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat
