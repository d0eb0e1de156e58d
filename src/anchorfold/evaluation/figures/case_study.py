"""Figure: heatmaps of one page and query for several methods and ratios on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from anchorfold.backbones.encoder import ComparableEncoder
from anchorfold.compressors import FullIndex, compressor_title, required_signals
from anchorfold.core.scoring import score_retention
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.figures.style import import_pyplot
from anchorfold.evaluation.methods import Method
from anchorfold.explanation.evidence import compute_evidence
from anchorfold.explanation.heatmap import overlay_heatmap

RATIOS = (0.2, 0.1, 0.05)
LONGER = 900  # pixels of a panel's longer side

Box = tuple[float, float, float, float]  # left, top, right, bottom, as fractions of the page


def draw_case_study(
    model: ComparableEncoder,
    image: Image.Image,
    query: str,
    methods: Sequence[str],
    path: Path,
    ratios: Sequence[float] = RATIOS,
    boxes: Sequence[Box] = (),
) -> None:
    """Draw one row per method and one column per ratio; titles state the pair's score retention (Pair-SR).

    `boxes` frame where a reader finds the answer.
    """
    compressors = {(m, r): Method(m, ratio=r).make() for m in methods for r in ratios}
    signals = required_signals(compressors.values(), model.layer_settings)
    (state,) = model.page_states([image], signals)
    if state.grid is None:
        raise AnchorFoldError(f"{model.name} does not say where its vectors lie on a page: nothing to draw.")
    full = model.compress_page(state, FullIndex())
    explained = model.explain_query(query)
    pages = {key: model.compress_page(state, compressor) for key, compressor in compressors.items()}
    words = explained.vectors, explained.labels, explained.words
    lit = {key: compute_evidence(*words, page) for key, page in pages.items()}
    most = max(float(e.query_map.max()) for e in lit.values())
    plt = import_pyplot()
    shape = image.height / image.width
    figure, panels = plt.subplots(
        len(methods), len(ratios), figsize=(3.6 * len(ratios), (3.6 * shape + 0.45) * len(methods)), squeeze=False
    )
    for row, method in enumerate(methods):
        for column, ratio in enumerate(ratios):
            panel = panels[row][column]
            picture = overlay_heatmap(image, lit[method, ratio].query_map, state.grid, most, LONGER)
            panel.imshow(picture)
            for left, top, right, bottom in boxes:
                corner = left * picture.width, top * picture.height
                size = (right - left) * picture.width, (bottom - top) * picture.height
                panel.add_patch(plt.Rectangle(corner, *size, fill=False, edgecolor="#C00000", lw=2))
            retention = score_retention(explained.vectors, full, pages[method, ratio])
            panel.set_title(f"{compressor_title(method)}, {1 / ratio:.0f}x: {retention:.1f} % kept", fontsize=10)
            panel.set_xticks([])
            panel.set_yticks([])
            panel.grid(False)
    figure.suptitle(f'"{query}"', fontsize=12)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def parse_box(text: str) -> Box:
    """Parse `left,top,right,bottom` as fractions of the page.

    >>> parse_box("0.1,0.2,0.5,0.4")
    (0.1, 0.2, 0.5, 0.4)
    """
    try:
        left, top, right, bottom = (float(part) for part in text.split(","))
    except ValueError as error:
        raise AnchorFoldError(f"{text!r} is no box: write left,top,right,bottom as fractions of the page.") from error
    if not (0 <= left < right <= 1 and 0 <= top < bottom <= 1):
        raise AnchorFoldError(f"{text!r} is no box: left,top,right,bottom lie between 0 and 1, in order.")
    return left, top, right, bottom
