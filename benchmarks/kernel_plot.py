"""Plot the output of `python -m benchmarks.kernels --parts grid`: wall time by number of query vectors.

python -m benchmarks.kernels --parts grid > grid.txt
python -m benchmarks.kernel_plot grid.txt scale.png
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import matplotlib.pyplot as plt

COLOURS = {"16": "#0b3c5d", "8": "#0b6e4f", "4": "#6a994e", "2": "#bc8034", "1": "#b5541c"}  # by bits


def tables(text: str) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """Return the points (query vectors, wall milliseconds) of each column, by table title."""
    result: dict[str, dict[str, list[tuple[int, float]]]] = {}
    columns: dict[str, list[tuple[int, float]]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip(" |").split(" | ")]
        if title := re.match(r"([\d,]+ pages)", line):
            columns = result.setdefault(title[1], {})
        elif cells[0] == "query vectors":
            columns.update({name: [] for name in cells[2:]})
        elif cells[1:2] == ["wall"]:
            for points, cell in zip(columns.values(), cells[2:], strict=False):
                points.append((int(cells[0]), float(cell.split()[0])))
    return result


def main() -> None:
    grids = tables(Path(sys.argv[1]).read_text())
    axes = plt.subplots(1, len(grids), figsize=(5.5 * len(grids), 4.2), constrained_layout=True, squeeze=False)[1][0]
    for axis, (title, columns) in zip(axes, grids.items(), strict=True):
        peers = iter("^vD<>P")
        for name, points in columns.items():
            colour = COLOURS.get(name.removesuffix(" bits"), "0.5")
            style = f"{next(peers)}:" if colour == "0.5" else "o-"
            axis.plot(*zip(*points, strict=True), style, color=colour, label=name.replace("1 bits", "1 bit"))
        axis.set(xscale="log", yscale="log", title=title, xlabel="query vectors", ylabel="ms per query")
        axis.set_xticks([4, 8, 16, 32], ["4", "8", "16", "32"])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[-1].legend(*axes[0].get_legend_handles_labels(), fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    plt.savefig(sys.argv[2], dpi=110)


if __name__ == "__main__":
    main()
