"""Styles of all figures: a colour, marker and dash pattern per method, distinguishable in greyscale."""

from __future__ import annotations

from typing import Any

from anchorfold.compressors import COMPRESSORS, compressor_names
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.methods import ANCHORFOLD

# Colour and matplotlib marker of each method, distinguishable in grey.
STYLES = {
    "1d-pooling": ("#E69F00", "D"),
    "1d-pooling-raw": ("#F0C566", "D"),
    "agc": ("#B2182B", "p"),
    "anchorfold": ("#D55E00", "o"),
    "docpruner": ("#CC79A7", "v"),
    "focus-clustering": ("#35247A", "X"),
    "none": ("#000000", "*"),
    "random": ("#666666", "+"),
    "sap": ("#009E73", "^"),
    "semantic-clustering": ("#0072B2", "s"),
    "semantic-clustering-raw": ("#66AAD1", "s"),
    "similarity-fold": ("#01665E", "d"),
    "spread-fold": ("#8C510A", "h"),
    "ward": ("#56B4E9", "P"),
}
OTHER = ("#777777", ".")  # methods of other packages
RANDOM_ANCHORS = "#999999"
DASHES = ((), (4, 2), (1, 1.5), (6, 2, 1, 2), (3, 1, 1, 1, 1, 1))


def line_style(method: str) -> dict[str, Any]:
    """Return matplotlib's line properties for a method."""
    if method not in COMPRESSORS:
        return {"color": RANDOM_ANCHORS, "marker": "x", "lw": 1.3, "dashes": DASHES[2]}
    color, marker = STYLES.get(method, OTHER)
    if method == ANCHORFOLD:
        return {"color": color, "marker": marker, "lw": 2.6}
    dashes = DASHES[1 + compressor_names().index(method) % (len(DASHES) - 1)]
    return {"color": color, "marker": marker, "lw": 1.3, "dashes": dashes}


def method_colour(method: str) -> str:
    """Return the colour of a method, as #rrggbb."""
    return STYLES.get(method, OTHER)[0]


def point_style(method: str) -> dict[str, Any]:
    """Return matplotlib's marker properties for a method."""
    style = line_style(method)
    return {"color": style["color"], "marker": style["marker"]}


def shared_legend(figure: Any, panels: Any, columns: int = 4) -> None:
    """Draw one legend for all panels."""
    entries: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        list(entries.values()), list(entries), fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=columns
    )


def import_pyplot() -> Any:
    """Import pyplot with a non-interactive backend and the style of the figures."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise AnchorFoldError("figures require matplotlib: pip install 'anchorfold[figures]'.") from error
    mpl.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {"font.size": 11, "axes.titlesize": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "grid.alpha": 0.25, "figure.dpi": 130, "savefig.bbox": "tight", "legend.frameon": False}
    )  # fmt: skip
    return pyplot
