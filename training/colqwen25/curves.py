"""Training curves: `curve.json` with every logged step, `curves.png` with loss and NDCG@5."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

CURVE_FILE, FIGURE_FILE = "curve.json", "curves.png"
LOGGED = {"loss": "loss", "eval_ndcg_at_5": "ndcg_at_5", "learning_rate": "learning_rate", "grad_norm": "grad_norm"}
Point = dict[str, Any]


def points_of(history: Iterable[Point]) -> list[Point]:
    """Merge the log history of transformers to one point per step; it repeats entries after a resume."""
    points: dict[int, Point] = {}
    for entry in history:
        values = {name: entry[key] for key, name in LOGGED.items() if key in entry}
        if values:
            points.setdefault(entry["step"], {"step": entry["step"]}).update(values)
    return [points[step] for step in sorted(points)]


def read_points(folder: Path) -> list[Point]:
    """Read the curve of a run."""
    points: list[Point] = json.loads((folder / CURVE_FILE).read_text())["points"]
    return points


class CurveWriter(TrainerCallback):
    """Writes both files during training, in the main process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the curve after each report."""
        if state.is_world_process_zero:
            curve = {"step": state.global_step, "steps": state.max_steps, "points": points_of(state.log_history)}
            temporary = self.folder / f"{CURVE_FILE}.new"
            temporary.write_text(json.dumps(curve, indent=1) + "\n")
            os.replace(temporary, self.folder / CURVE_FILE)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Draw the figure after each validation."""
        if state.is_world_process_zero:
            draw(points_of(state.log_history), self.folder / FIGURE_FILE)


def draw(points: list[Point], path: Path) -> None:
    """Plot loss and NDCG@5 over steps in two panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    for axes, name, colour in ((above, "loss", "#444444"), (below, "ndcg_at_5", "#1B7837")):
        values = [(point["step"], point[name]) for point in points if name in point]
        axes.plot([step for step, _ in values], [value for _, value in values], color=colour, marker=".")
        axes.grid(alpha=0.3)
    above.set_ylabel("loss")
    below.set(ylabel="NDCG@5, held-out pages", xlabel="step", ylim=(0, 1))
    figure.savefig(path, dpi=120)
