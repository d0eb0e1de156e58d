"""One style for all figures: each method in its own colour and marker, legible sizes."""

from __future__ import annotations

from typing import Any

from anchorfold.compressors import COMPRESSORS
from anchorfold.errors import AnchorFoldError

# Compressors say how they look; these are drawn beside them.
RANDOM_ANCHORS = "#999999"


def look_of(method: str) -> dict[str, str]:
    """Colour and marker of a method in a figure, for matplotlib."""
    if method in COMPRESSORS:
        return {"color": COMPRESSORS[method].colour, "marker": COMPRESSORS[method].marker}
    return {"color": RANDOM_ANCHORS, "marker": "x"}


def plotting() -> Any:
    """matplotlib's pyplot without a window, in our style."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise AnchorFoldError("figures need matplotlib: pip install 'anchorfold[figures]'.") from error
    mpl.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {"font.size": 11, "axes.titlesize": 12, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "grid.alpha": 0.25, "figure.dpi": 130, "savefig.bbox": "tight", "legend.frameon": False}
    )  # fmt: skip
    return pyplot
