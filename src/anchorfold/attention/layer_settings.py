"""Layer windows and propagation depths: from the paper, from a calibration file, or a default by depth."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from anchorfold.errors import InvalidArgumentError, UncalibratedWarning

CALIBRATION_FILE = "anchorfold.json"
VISION_TOWER = "vision-tower"  # start of the names of graphs that are read in the vision tower


@dataclass(frozen=True)
class LayerSettings:
    """Layers that compressors read on a backbone. Windows are zero-based and inclusive.

    Attributes:
        window: first and last layer of AnchorFold.
        sap_window: first and last layer of SAP.
        layers: depth of the model.
        steps: propagation depth K of AnchorFold.
        source: "given", "paper", "shipped", "guess", "calibration", or the path of a calibration file.
        universal: number of learned tokens appended to each page, for models trained with AGC.
        tower: blocks of the model's vision tower in which all patches of an image attend to each other; 0 if their
            scores cannot be assigned to visual tokens. Set by the backbone.

    Examples:
        >>> LayerSettings(window=(11, 14), sap_window=(9, 12), layers=18).steps
        6
    """

    window: tuple[int, int]
    sap_window: tuple[int, int]
    layers: int
    steps: int = 6
    source: str = "given"
    universal: int = 0
    tower: int = 0

    def __post_init__(self) -> None:
        for name, (first, last) in (("window", self.window), ("sap_window", self.sap_window)):
            if not 0 <= first <= last < self.layers:
                raise ValueError(f"{name} {first}-{last} is not within {self.layers} layers.")

    def describe(self, graph: str | None = None) -> str:
        """Return the layers that a method reads with this graph as readable text.

        Examples:
            >>> LayerSettings((25, 32), (26, 33), layers=36, tower=4).describe("vision-tower")
            'blocks 2-2 of 4 in the vision tower, 6 steps'
        """
        if not (graph or "").startswith(VISION_TOWER):
            return str(self)
        first, last = self.tower_window
        return f"blocks {first}-{last} of {self.tower} in the vision tower, {self.steps} steps"

    def __str__(self) -> str:
        return f"layers {self.window[0]}-{self.window[1]}, {self.steps} steps ({describe_source(self.source)})"

    @property
    def tower_window(self) -> tuple[int, int]:
        """First and last block of the vision tower to read, numbered among its `tower` blocks."""
        return window_by_depth(self.tower)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LayerSettings:
        """Create settings from the JSON form of `dataclasses.asdict`."""
        return cls(**{**data, "window": tuple(data["window"]), "sap_window": tuple(data["sap_window"])})


SOURCES = {
    "given": "given by the caller",
    "paper": "paper",
    "shipped": "shipped default",
    "guess": "guess: 70-90 % of depth",
    "calibration": "this calibration",
}

# Appendices A.3 and A.4 of the paper.
PAPER: dict[str, LayerSettings] = {
    "colpali": LayerSettings(window=(11, 14), sap_window=(11, 14), layers=18, source="paper"),
    "colqwen2.5": LayerSettings(window=(25, 32), sap_window=(26, 33), layers=36, source="paper"),
    "nemotron": LayerSettings(window=(14, 19), sap_window=(18, 23), layers=28, source="paper"),
}


def describe_source(source: str) -> str:
    """Return the source of layer settings as readable text.

    Examples:
        >>> describe_source("shipped"), describe_source("/models/mine/anchorfold.json")
        ('shipped default', 'calibration file /models/mine/anchorfold.json')
    """
    return SOURCES.get(source, f"calibration file {source}")


def default_settings(family: str, layers: int) -> LayerSettings:
    """Return the paper's settings of a model family, or the window at 70 to 90 % of the depth."""
    if family in PAPER and PAPER[family].layers == layers:
        return PAPER[family]
    window = window_by_depth(layers)
    return LayerSettings(window, window, layers, source="guess")


def window_by_depth(layers: int) -> tuple[int, int]:
    """Return the first and last layer at 70 to 90 % of the depth, where most calibrated windows of the paper are.

    Examples:
        >>> window_by_depth(27), window_by_depth(4)
        ((18, 23), (2, 2))
    """
    first = min(math.floor(0.7 * layers), layers - 1)
    return first, min(first + math.ceil(0.2 * layers), layers) - 1


def settings_for(family: str, layers: int, *files: Path, shipped: Path | None = None) -> LayerSettings:
    """Return the settings of the first existing calibration file, or the defaults, with a warning if uncalibrated.

    Args:
        family: model family.
        layers: depth of the model.
        *files: calibration files of the user.
        shipped: calibration file distributed with the model; read last.
    """
    for file in files:
        if file.is_file():
            return read_settings(file, layers)
    if shipped is not None and shipped.is_file():
        return replace(read_settings(shipped, layers), source="shipped")
    settings = default_settings(family, layers)
    if settings.source == "guess":
        first, last = settings.window
        warnings.warn(
            f"this {family} backbone of {layers} layers has no calibration: AnchorFold uses the window {first}-{last} "
            "(70-90 % of depth). Run `anchorfold calibrate --save` to calibrate it.",
            UncalibratedWarning,
            stacklevel=4,  # the caller of anchorfold.load
        )
    return settings


def read_settings(path: Path, layers: int) -> LayerSettings:
    """Read a calibration file of a model with this number of layers."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        settings = LayerSettings(
            tuple(data["window"]), tuple(data["sap_window"]), int(data["layers"]), int(data["steps"]), str(path),
            int(data.get("universal", 0)),
        )  # fmt: skip
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(
            f"{path} is not a calibration file ({error}): run `anchorfold calibrate` again."
        ) from error
    return require_depth(settings, layers)


def require_depth(settings: LayerSettings, layers: int) -> LayerSettings:
    """Return the settings, or raise ValueError if they belong to a model of another depth."""
    if settings.layers != layers:
        raise InvalidArgumentError(
            f"{settings.source} is for a model of {settings.layers} layers, this one has {layers}: calibrate again."
        )
    return settings


def write_settings(path: Path, settings: LayerSettings) -> None:
    """Write a calibration file and create its parent folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {k: v for k, v in asdict(settings).items() if k not in ("source", "tower")}
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
