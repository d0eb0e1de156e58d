"""The paper's two calibration panels: single-layer profiles, and joint candidates."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean, stdev

from anchorfold.compressors import SAP, AnchorFold
from anchorfold.evaluation.calibration import Calibration
from anchorfold.evaluation.figures.style import RANDOM_ANCHORS, plotting


def draw_calibration(found: Calibration, path: Path, name: str) -> None:
    """Left: score kept by each layer alone, with the chosen window. Right: score kept by each depth's own window."""
    plt = plotting()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8))
    chosen = found.settings.steps
    first, last = found.settings.window
    left.axvspan(first - 0.5, last + 0.5, color=AnchorFold.colour, alpha=0.12, label=f"window {first}-{last}")
    others = [depth for depth in found.profiles if depth != chosen] or [chosen]
    for depth, profile in found.profiles.items():
        mine = depth == chosen
        colour, width = (AnchorFold.colour, 2.2) if mine else ("#999999", 0.9)
        label = f"K = {depth}" if mine else "other depths" if depth == others[0] else None
        left.plot(range(len(profile)), profile, color=colour, lw=width, label=label)
    left.plot(range(len(found.sap_profile)), found.sap_profile, color=SAP.colour, ls="--", label="SAP")
    left.set(
        xlabel="layer",
        ylabel="score kept by this layer alone, %",
        title=f"{name}: layers {first}-{last}, the last that hold up",
    )
    left.legend(fontsize=9)
    depths = list(found.values)
    means = [fmean(found.values[d]) for d in depths]
    errors = [stdev(v) / len(v) ** 0.5 if len(v) > 1 else 0.0 for v in found.values.values()]
    right.errorbar(depths, means, errors, color="#444444", marker="o", capsize=3)
    right.plot(chosen, means[depths.index(chosen)], "o", ms=10, color=AnchorFold.colour, label=f"chosen: K = {chosen}")
    best, chance = means[depths.index(chosen)], fmean(found.random)
    right.axhline(chance, color=RANDOM_ANCHORS, ls=":", label="random anchors")
    right.set(xlabel="propagation depth K", ylabel="score kept by its own window, %", title=f"K = {chosen} is enough: {best:.1f} % kept, random anchors {chance:.1f} %")  # fmt: skip  # noqa: E501
    right.legend(fontsize=9)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
