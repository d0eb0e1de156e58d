"""Save and resume: everything a stage needs to go on after a cut, written in one step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch


def save(path: Path, **state: Any) -> None:
    """Write beside, then rename: a cut while writing leaves the old checkpoint."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    torch.save(state, beside)
    os.replace(beside, path)


def load(path: Path) -> dict[str, Any] | None:
    return torch.load(path, map_location="cpu", weights_only=True) if path.exists() else None
