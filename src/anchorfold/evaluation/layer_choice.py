"""Layer settings of an evaluation: the paper's, the model's calibration, or a calibration file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from anchorfold.attention.layer_settings import PAPER, read_settings
from anchorfold.backbones.base import BackboneEncoder
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.benchmarks import PAPER_SUITES
from anchorfold.evaluation.corpus import Corpus

PAPER_CHOICE, CALIBRATED = "paper", "calibrated"
UNCALIBRATED = ("paper", "guess")  # sources that `load` uses for a model without calibration


def choose_layers(model: BackboneEncoder, choice: str | None, corpora: Sequence[Corpus]) -> None:
    """Set the layer window and depth that the methods of an evaluation use.

    Args:
        model: the backbone.
        choice: `paper`, `calibrated` or a calibration file; None for the paper's settings if the paper evaluates this
            backbone on these corpora, else for the settings that `load` found.
        corpora: the evaluated corpora.
    """
    own = model.layer_settings
    known = PAPER.get(model.family)
    reported = known is not None and known.layers == own.layers
    if choice is None:
        choice = PAPER_CHOICE if reported and all(c.benchmark in PAPER_SUITES for c in corpora) else ""
    if choice == PAPER_CHOICE:
        if known is None or not reported:
            raise AnchorFoldError(
                f"the paper has no layer settings for {model.name} ({model.family}, {own.layers} layers): use "
                "--settings calibrated or a calibration file."
            )
        model.layer_settings = replace(known, universal=own.universal)
    elif choice == CALIBRATED:
        if own.source in UNCALIBRATED:
            raise AnchorFoldError(
                f"{model.name} has no calibration: run `anchorfold calibrate --save`, or use --settings FILE."
            )
    elif choice:
        path = Path(choice)
        if not path.is_file():
            raise AnchorFoldError(f"--settings must be paper, calibrated or a calibration file, got {choice!r}.")
        model.layer_settings = replace(read_settings(path, own.layers), universal=own.universal)
