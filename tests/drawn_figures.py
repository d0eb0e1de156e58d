"""Matplotlib figures captured when they are saved, so that tests can compare their content."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image


@contextlib.contextmanager
def recorded_figures() -> Iterator[dict[str, Any]]:
    """Figures that are saved meanwhile, by the file's name. They are saved all the same."""
    figures: dict[str, Any] = {}
    save = Figure.savefig

    def record(figure: Any, path: Any, **options: Any) -> None:
        figures[Path(path).name] = figure
        save(figure, path, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", record)
        yield figures


def points(panel: Any) -> dict[str, Any]:
    """The points of a panel's lines, `label -> [(x, y), ...]`, without lines that have no legend entry."""
    lines = [(line.get_label(), line.get_xydata()) for line in panel.get_lines()]
    for bars in panel.containers:  # points with error bars: the label is the container's
        lines.append((bars.get_label(), bars[0].get_xydata()))
    return {label: [tuple(point) for point in data.tolist()] for label, data in lines if not label.startswith("_")}


def shows_colours(path: Path, colours: list[str]) -> bool:
    """Whether a picture has pixels of each colour."""
    pixels = np.asarray(Image.open(path).convert("RGB")).reshape(-1, 3).astype(int)
    targets = [np.array([round(255 * part) for part in to_rgb(colour)]) for colour in colours]
    return all((abs(pixels - colour).max(1) <= 2).sum() >= 5 for colour in targets)
