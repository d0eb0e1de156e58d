"""Figure: calibration of several backbones, with paired gaps per depth and layer profiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from anchorfold.compressors import SAP, AnchorFold
from anchorfold.evaluation.calibration import Calibration, paired_gaps, suffix_start
from anchorfold.evaluation.figures.style import import_pyplot, method_colour


def draw_calibration(calibrations: Mapping[str, Calibration], path: Path) -> None:
    """Draw one column per backbone: paired gaps with standard errors above, layer profiles below."""
    plt = import_pyplot()
    figure, panels = plt.subplots(2, len(calibrations), figsize=(5.6 * len(calibrations), 7.2), squeeze=False)
    for (name, calibration), top, bottom in zip(calibrations.items(), panels[0], panels[1], strict=True):
        _draw_gaps(top, name, calibration)
        _draw_profiles(bottom, calibration)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _draw_gaps(panel: Any, name: str, calibration: Calibration) -> None:
    """Draw paired gaps: the smallest depth whose error bar reaches zero is chosen."""
    gaps = paired_gaps(calibration.values)
    chosen = calibration.settings.steps
    depths = list(gaps)
    panel.errorbar(range(len(depths)), [gaps[k][0] for k in depths], [gaps[k][1] for k in depths], color="#444444",
                   marker="o", capsize=4, ls="", label="mean gap and its standard error")  # fmt: skip
    panel.plot(
        depths.index(chosen),
        gaps[chosen][0],
        "o",
        ms=11,
        color=method_colour(AnchorFold.name),
        label=f"chosen: K = {chosen}",
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
    """Draw single-layer retention with its median, the window and the trailing layers below the median."""
    steps = calibration.settings.steps
    profile = calibration.profiles[steps]
    middle, layers = median(profile), range(len(profile))
    first, last = calibration.settings.window
    panel.axvspan(
        first - 0.5, last + 0.5, color=method_colour(AnchorFold.name), alpha=0.15, label=f"window {first}-{last}"
    )
    start = suffix_start(profile)
    if start < len(profile):
        panel.axvspan(start - 0.5, len(profile) - 0.5, color="#000000", alpha=0.10, hatch="//", lw=0,
                      label="trailing layers below the median")  # fmt: skip
    sap = calibration.sap_profile
    panel.plot(layers, [v - middle for v in profile], color=method_colour(AnchorFold.name), lw=2.2, marker="o", ms=3,
               label=f"AnchorFold, K = {steps}")  # fmt: skip
    panel.plot(
        layers, [v - median(sap) for v in sap], color=method_colour(SAP.name), ls="--", marker="^", ms=3, label="SAP"
    )
    panel.axhline(0, color="#000000", lw=0.8, ls=":")
    trailing = (
        f"layers {start}-{len(profile) - 1} fall below" if start < len(profile) else "no trailing layer falls below"
    )
    panel.set(
        xlabel="layer alone", ylabel="score retention around its median, points",
        title=f"{trailing} the median of {middle:.1f} %: window {first}-{last}",
    )  # fmt: skip
    panel.legend(fontsize=9)
