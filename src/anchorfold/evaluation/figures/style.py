"""One look for all figures: colours per method that any colour vision tells apart, legible sizes."""

from __future__ import annotations

from typing import Any

from anchorfold.errors import AnchorFoldError

# Okabe and Ito's palette.
COLOURS = {
    "anchorfold": "#D55E00", "semantic-clustering": "#0072B2", "sap": "#009E73", "docpruner": "#CC79A7",
    "1d-pooling": "#E69F00", "ward": "#56B4E9", "spread-fold": "#8C510A", "agc": "#B2182B",
    "focus-clustering": "#35247A", "random-anchors": "#999999", "random": "#666666", "none": "#000000",
}  # fmt: skip
MARKERS = {
    "anchorfold": "o", "semantic-clustering": "s", "sap": "^", "docpruner": "v", "1d-pooling": "D", "ward": "P",
    "spread-fold": "h", "focus-clustering": "X", "agc": "p",
    "random-anchors": "x", "random": "+", "none": "*",
}  # fmt: skip
NAMES = {
    "anchorfold": "AnchorFold", "semantic-clustering": "Semantic Clustering", "sap": "SAP", "docpruner": "DocPruner",
    "1d-pooling": "1D-Pooling", "ward": "Ward", "spread-fold": "SpreadFold (ours)",
    "focus-clustering": "FocusClustering (ours)", "random-anchors": "random anchors", "random": "random",
    "agc": "AGC (trained)", "none": "full index",
}  # fmt: skip


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
