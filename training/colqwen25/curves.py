"""How a run goes, on disk: `curve.json` with every logged step, `curves.png` with loss and NDCG@5."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

CURVE_FILE, PICTURE_FILE = "curve.json", "curves.png"
SHOWN = {"loss": "loss", "eval_ndcg_at_5": "ndcg_at_5", "learning_rate": "learning_rate", "grad_norm": "grad_norm"}
Point = dict[str, Any]


def points_of(history: Iterable[Point]) -> list[Point]:
    """One point a step, from transformers' log, which has an entry for each report and repeats one after a resume."""
    points: dict[int, Point] = {}
    for entry in history:
        values = {name: entry[key] for key, name in SHOWN.items() if key in entry}
        if values:
            points.setdefault(entry["step"], {"step": entry["step"]}).update(values)
    return [points[step] for step in sorted(points)]


def read_points(folder: Path) -> list[Point]:
    """The curve of a run so far."""
    points: list[Point] = json.loads((folder / CURVE_FILE).read_text())["points"]
    return points


class CurveWriter(TrainerCallback):
    """Writes both files as training goes on, in one process only."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After each report."""
        if state.is_world_process_zero:
            curve = {"step": state.global_step, "steps": state.max_steps, "points": points_of(state.log_history)}
            beside = self.folder / f"{CURVE_FILE}.new"
            beside.write_text(json.dumps(curve, indent=1) + "\n")
            os.replace(beside, self.folder / CURVE_FILE)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After each validation."""
        if state.is_world_process_zero:
            draw(points_of(state.log_history), self.folder / PICTURE_FILE)


def draw(points: list[Point], path: Path) -> None:
    """Loss and NDCG@5 over steps, one above the other."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    for axes, name, colour in ((above, "loss", "#444444"), (below, "ndcg_at_5", "#1B7837")):
        shown = [(point["step"], point[name]) for point in points if name in point]
        axes.plot([step for step, _ in shown], [value for _, value in shown], color=colour, marker=".")
        axes.grid(alpha=0.3)
    above.set_ylabel("loss")
    below.set(ylabel="NDCG@5, unseen pages", xlabel="step", ylim=(0, 1))
    figure.savefig(path, dpi=120)
