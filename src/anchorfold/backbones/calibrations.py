"""Where the calibration of a model lies: beside a folder's weights or adapters, else in the user's cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from platformdirs import user_cache_path
from torch import Tensor

from anchorfold.attention.layer_settings import CALIBRATION_FILE
from anchorfold.backbones.fingerprint import weights_fingerprint

CACHE_VARIABLE = "ANCHORFOLD_CACHE"


def cache_folder() -> Path:
    """`$ANCHORFOLD_CACHE`, or the folder that the system keeps for a user's caches."""
    return Path(os.environ.get(CACHE_VARIABLE) or user_cache_path("anchorfold", appauthor=False))


def model_folder(name: str) -> Path:
    """Where calibrations of a model that is no folder lie in the cache."""
    return cache_folder() / "calibrations" / name.replace("/", "--")


def calibration_file(
    name: str, weights: Mapping[str, Tensor], revision: str | None = None, bidirectional: bool | None = None
) -> Path:
    """The file of a model, whether it exists or not.

    Args:
        name: a folder, or the name of a model on the hub or in this package.
        weights: of the model; other weights under the same name have another calibration.
        revision: of a hub model.
        bidirectional: the option of `load`: without its causal mask, a model attends otherwise.
    """
    if Path(name).is_absolute() and Path(name).is_dir():
        return Path(name) / CALIBRATION_FILE
    # Merging adapters changes all weights but the adapters' own.
    adapters = {key: weight for key, weight in weights.items() if ".lora_" in key}
    digest = weights_fingerprint(f"bidirectional={bidirectional}", adapters or weights)
    return model_folder(name) / f"{(revision or 'main').replace('/', '--')}-{digest}.json"
