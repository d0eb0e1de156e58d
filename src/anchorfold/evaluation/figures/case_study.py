"""The paper's case study: one page and query under two methods and three ratios, lit on one shared scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from anchorfold.backbones.encoder import ComparableEncoder
from anchorfold.compressors import FullIndex, title_of, wanted_signals
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.figures.style import plotting
from anchorfold.evaluation.methods import Method
from anchorfold.explain.evidence import evidence
from anchorfold.explain.pictures import light
from anchorfold.scoring import score_retention

RATIOS = (0.2, 0.1, 0.05)
LONGER = 900  # pixels of a panel's longer side


def draw_case_study(
    model: ComparableEncoder,
    image: Image.Image,
    query: str,
    methods: Sequence[str],
    path: Path,
    ratios: Sequence[float] = RATIOS,
) -> None:
    """A row a method, a column a ratio; each title says what is kept of the full index's score (Pair-SR)."""
    made = {(m, r): Method(m, ratio=r).make() for m in methods for r in ratios}
    signals = wanted_signals(made.values(), model.settings)
    (state,) = model.page_states([image], signals)
    if state.grid is None:
        raise AnchorFoldError(f"{model.name} does not say where its vectors lie on a page: nothing to draw.")
    full = model.compress(state, FullIndex())
    asked = model.explain_query(query)
    pages = {key: model.compress(state, each) for key, each in made.items()}
    found = {key: evidence(asked.vectors, asked.labels, asked.words, page) for key, page in pages.items()}
    most = max(float(e.whole.max()) for e in found.values())
    plt = plotting()
    shape = image.height / image.width
    figure, panels = plt.subplots(
        len(methods), len(ratios), figsize=(3.6 * len(ratios), (3.6 * shape + 0.45) * len(methods)), squeeze=False
    )
    for row, method in enumerate(methods):
        for column, ratio in enumerate(ratios):
            panel = panels[row][column]
            panel.imshow(light(image, found[method, ratio].whole, state.grid, most, LONGER))
            kept = score_retention(asked.vectors, full, pages[method, ratio])
            panel.set_title(f"{title_of(method)}, {1 / ratio:.0f}x: {kept:.1f} % kept", fontsize=10)
            panel.set_xticks([])
            panel.set_yticks([])
            panel.grid(False)
    figure.suptitle(f'"{query}"', fontsize=12)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
