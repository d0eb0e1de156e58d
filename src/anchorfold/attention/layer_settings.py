"""Layer windows and depths: the paper's, a calibrated file's, or a careful guess."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

CALIBRATION_FILE = "anchorfold.json"


class UncalibratedWarning(UserWarning):
    """Nobody has calibrated this backbone: its window is a guess."""


@dataclass(frozen=True)
class LayerSettings:
    """What a backbone's compressors need to know. Windows are zero-based and inclusive.

    `window` and `steps` are AnchorFold's, `sap_window` is SAP's, `layers` the depth they were found for; `universal`
    is how many learned tokens the model appends to a page for AGC, if it was trained so. `source` is "given", "paper",
    "shipped", "guess", "calibration" or the path of a calibration file.

    >>> LayerSettings(window=(11, 14), sap_window=(9, 12), layers=18).steps
    6
    """

    window: tuple[int, int]
    sap_window: tuple[int, int]
    layers: int
    steps: int = 6
    source: str = "given"
    universal: int = 0

    def __post_init__(self) -> None:
        for name, (first, last) in (("window", self.window), ("sap_window", self.sap_window)):
            if not 0 <= first <= last < self.layers:
                raise ValueError(f"{name} {first}-{last} does not lie within {self.layers} layers.")

    def __str__(self) -> str:
        return f"layers {self.window[0]}-{self.window[1]}, {self.steps} steps ({describe_source(self.source)})"

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LayerSettings:
        """From what `dataclasses.asdict` and JSON made of one."""
        return cls(**{**data, "window": tuple(data["window"]), "sap_window": tuple(data["sap_window"])})


SOURCES = {
    "given": "given by the caller",
    "paper": "paper",
    "shipped": "shipped default",
    "guess": "guess: 70-90 % of depth",
    "calibration": "this calibration",
}


def describe_source(source: str) -> str:
    """Return the source of layer settings as text for people.

    Examples:
        >>> describe_source("shipped"), describe_source("/models/mine/anchorfold.json")
        ('shipped default', 'calibration file /models/mine/anchorfold.json')
    """
    return SOURCES.get(source, f"calibration file {source}")


# Appendices A.3 and A.4 of the paper.
PAPER: dict[str, LayerSettings] = {
    "colpali": LayerSettings(window=(11, 14), sap_window=(11, 14), layers=18, source="paper"),
    "colqwen2.5": LayerSettings(window=(25, 32), sap_window=(26, 33), layers=36, source="paper"),
    "nemotron": LayerSettings(window=(14, 19), sap_window=(18, 23), layers=28, source="paper"),
}


def guess(layers: int) -> LayerSettings:
    """The window at 70 to 90 % of the depth, where the paper's calibrated windows tend to lie."""
    first = min(math.floor(0.7 * layers), layers - 1)
    last = min(first + math.ceil(0.2 * layers), layers) - 1
    return LayerSettings((first, last), (first, last), layers, source="guess")


def settings_for(family: str, layers: int, *files: Path, shipped: Path | None = None) -> LayerSettings:
    """The first of these calibration files that exists, then the paper's settings, then a guess with a warning.

    Args:
        family: of the model.
        layers: its depth.
        *files: calibration files of the user.
        shipped: the calibration file that comes with the model; it is the last of the files.
    """
    for file in files:
        if file.is_file():
            return read_settings(file, layers)
    if shipped is not None and shipped.is_file():
        return replace(read_settings(shipped, layers), source="shipped")
    known = PAPER.get(family)
    if known is not None and known.layers == layers:
        return known
    settings = guess(layers)
    warnings.warn(
        f"nobody has calibrated this {family} backbone of {layers} layers: AnchorFold takes the window "
        f"{settings.window[0]}-{settings.window[1]} (70-90 % of depth). Run "
        "`anchorfold calibrate --save` to find its own.",
        UncalibratedWarning,
        stacklevel=4,  # the caller of anchorfold.load
    )
    return settings


def read_settings(path: Path, layers: int) -> LayerSettings:
    """LayerSettings from a calibration file, checked against the model's depth."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        settings = LayerSettings(
            window=tuple(data["window"]),
            sap_window=tuple(data["sap_window"]),
            layers=int(data["layers"]),
            steps=int(data["steps"]),
            source=str(path),
            universal=int(data.get("universal", 0)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a calibration file ({error}): run `anchorfold calibrate` again.") from error
    return require_depth(settings, layers)


def require_depth(settings: LayerSettings, layers: int) -> LayerSettings:
    """The same settings, or an error if they are for a model of another depth."""
    if settings.layers != layers:
        raise ValueError(
            f"{settings.source} was made for {settings.layers} layers, this model has {layers}: calibrate again."
        )
    return settings


def write_settings(path: Path, settings: LayerSettings) -> None:
    """Write a calibration file, and the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {k: v for k, v in asdict(settings).items() if k != "source"}
    path.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
