"""Calibration of several backbones: paired gaps of the depths, and layer profiles with the low suffix shaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from anchorfold.compressors import SAP, AnchorFold
from anchorfold.evaluation.calibration import Calibration, paired_gaps, suffix_start
from anchorfold.evaluation.figures.style import plotting


def draw_calibration(calibrations: Mapping[str, Calibration], path: Path) -> None:
    """A column a backbone. Top: how far each depth stays behind the best, with its standard error. Bottom: profiles."""
    plt = plotting()
    figure, panels = plt.subplots(2, len(calibrations), figsize=(5.6 * len(calibrations), 7.2), squeeze=False)
    for (name, calibration), top, bottom in zip(calibrations.items(), panels[0], panels[1], strict=True):
        _draw_gaps(top, name, calibration)
        _draw_profiles(bottom, calibration)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _draw_gaps(panel: Any, name: str, calibration: Calibration) -> None:
    """Eligible depths have their error bar on or above zero; the smallest of them is chosen."""
    gaps = paired_gaps(calibration.values)
    chosen = calibration.settings.steps
    depths = list(gaps)
    panel.errorbar(range(len(depths)), [gaps[k][0] for k in depths], [gaps[k][1] for k in depths], color="#444444",
                   marker="o", capsize=4, ls="", label="mean gap and its standard error")  # fmt: skip
    panel.plot(
        depths.index(chosen), gaps[chosen][0], "o", ms=11, color=AnchorFold.colour, label=f"chosen: K = {chosen}"
    )
    panel.axhline(0, color="#000000", lw=0.8, ls=":")
    panel.set_xticks(range(len(depths)), [f"{k}" for k in depths])
    mean, chance = fmean(calibration.values[chosen]), fmean(calibration.random)
    panel.set(
        xlabel="propagation depth K, each with its own window", ylabel="score retention behind the best, points",
        title=f"{name}: K = {chosen} is enough\n{mean:.1f} % retained, random anchors {chance:.1f} %",
    )  # fmt: skip
    panel.legend(fontsize=9)


def _draw_profiles(panel: Any, calibration: Calibration) -> None:
    """Single-layer retention around its median, with the window and the trailing layers below the median."""
    steps = calibration.settings.steps
    profile = calibration.profiles[steps]
    middle, layers = median(profile), range(len(profile))
    first, last = calibration.settings.window
    panel.axvspan(first - 0.5, last + 0.5, color=AnchorFold.colour, alpha=0.15, label=f"window {first}-{last}")
    start = suffix_start(profile)
    if start < len(profile):
        panel.axvspan(start - 0.5, len(profile) - 0.5, color="#000000", alpha=0.10, hatch="//", lw=0,
                      label="trailing layers below the median")  # fmt: skip
    sap = calibration.sap_profile
    panel.plot(layers, [v - middle for v in profile], color=AnchorFold.colour, lw=2.2, marker="o", ms=3,
               label=f"AnchorFold, K = {steps}")  # fmt: skip
    panel.plot(layers, [v - median(sap) for v in sap], color=SAP.colour, ls="--", marker="^", ms=3, label="SAP")
    panel.axhline(0, color="#000000", lw=0.8, ls=":")
    trailing = (
        f"layers {start}-{len(profile) - 1} fall below" if start < len(profile) else "no trailing layer falls below"
    )
    panel.set(
        xlabel="layer alone", ylabel="score retention around its median, points",
        title=f"{trailing} the median of {middle:.1f} %: window {first}-{last}",
    )  # fmt: skip
    panel.legend(fontsize=9)
