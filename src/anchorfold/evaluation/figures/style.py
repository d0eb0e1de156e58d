"""One style for all figures: each method in its own colour, marker and dashes, so that they are told apart in grey."""

from __future__ import annotations

from typing import Any

from anchorfold.compressors import COMPRESSORS, compressor_names
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.methods import OURS

# Compressors say how they look; these are drawn beside them.
RANDOM_ANCHORS = "#999999"
DASHES = ((), (4, 2), (1, 1.5), (6, 2, 1, 2), (3, 1, 1, 1, 1, 1))


def line_style(method: str) -> dict[str, Any]:
    """Colour, marker, dashes and width of a method's line, for matplotlib."""
    if method not in COMPRESSORS:
        return {"color": RANDOM_ANCHORS, "marker": "x", "lw": 1.3, "dashes": DASHES[2]}
    kind = COMPRESSORS[method]
    if method == OURS:
        return {"color": kind.colour, "marker": kind.marker, "lw": 2.6}
    dashes = DASHES[1 + compressor_names().index(method) % (len(DASHES) - 1)]
    return {"color": kind.colour, "marker": kind.marker, "lw": 1.3, "dashes": dashes}


def point_style(method: str) -> dict[str, Any]:
    """Colour and marker of a method's point."""
    style = line_style(method)
    return {"color": style["color"], "marker": style["marker"]}


def one_legend(figure: Any, panels: Any, columns: int = 4) -> None:
    """One legend below all panels, each method once."""
    entries: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        list(entries.values()), list(entries), fontsize=9, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=columns
    )


def plotting() -> Any:
    """matplotlib's pyplot without a window, in our style."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise AnchorFoldError("figures need matplotlib: pip install 'anchorfold[figures]'.") from error
    mpl.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams.update(
        {"font.size": 11, "axes.titlesize": 11, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
         "grid.alpha": 0.25, "figure.dpi": 130, "savefig.bbox": "tight", "legend.frameon": False}
    )  # fmt: skip
    return pyplot
