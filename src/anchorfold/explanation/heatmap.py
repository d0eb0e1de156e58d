"""Heatmaps of query words on a page image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from anchorfold.core.scoring import maxsim, score_retention
from anchorfold.errors import AnchorFoldError
from anchorfold.explanation.evidence import Evidence, compute_evidence, rasterize
from anchorfold.page import PatchGrid

if TYPE_CHECKING:
    from anchorfold.indexes.index import Index

# From low to high: yellow, orange, red, magenta, increasingly dark; distinguishable with any colour vision.
COLOURS = np.array([(253, 224, 71), (251, 146, 60), (239, 68, 68), (200, 20, 130)], np.float32)
QUERY_PANEL, WORD_PANEL, MARGIN, MAX_WORDS = 720, 230, 16, 8  # pixels of the longer side; number of words
GREY, LIGHT_GREY = (80, 80, 80), (200, 200, 200)


@dataclass(frozen=True)
class Explanation:
    """Why a page matches a query.

    `retention` (Pair-SR in percent) is None if the original file is unavailable or the uncompressed score not positive.

    Examples:
        >>> explanation = explain(index, "net revenue", "reports/annual.pdf", page=2)
        >>> explanation.evidence.words, explanation.is_original
        (('net', 'revenue'), True)
        >>> draw_explanation(explanation).size[0] > 500
        True
    """

    query: str
    document: str
    page: int
    evidence: Evidence
    grid: PatchGrid
    image: Image.Image
    is_original: bool
    retention: float | None


def explain(index: Index, query: str, document: str, page: int, compare_full: bool = True) -> Explanation:
    """Compute why a page matches; `compare_full` measures the score retention if the original file is available."""
    stored = index.page(document, page)
    encoded_page = stored.require_encoded()
    if encoded_page.grid is None:
        raise AnchorFoldError(f"cannot draw a heatmap: {index.settings.model} reports no positions of its vectors.")
    explained = index.encoder.explain_query(query)
    evidence = compute_evidence(explained.vectors, explained.labels, explained.words, encoded_page)
    image, is_original = stored.render(index.encoder.page_pixels)
    retention = None
    if is_original and compare_full and len(explained.vectors):
        (full,) = index.encoder.encode_documents([image])
        if float(maxsim([explained.vectors], [full])) > 0:
            retention = score_retention(explained.vectors, full, encoded_page)
    return Explanation(query, stored.document, page, evidence, encoded_page.grid, image, is_original, retention)


def overlay_heatmap(
    image: Image.Image, values: torch.Tensor, grid: PatchGrid, maximum: float, longer_side: int
) -> Image.Image:
    """Resize a page image and colour its patches by `values (N,)`; `maximum` is the top of the colour scale."""
    scale = longer_side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    page = np.asarray(image.convert("RGB").resize(size, Image.Resampling.LANCZOS), np.float32)
    heat = (rasterize(values, grid, *size) / max(maximum, 1e-9)).clamp(0, 1).sqrt().numpy()[..., None]
    position = heat * (len(COLOURS) - 1)
    low = np.clip(position.astype(int), 0, len(COLOURS) - 2)
    colour = COLOURS[low[..., 0]] * (1 - (position - low)) + COLOURS[low[..., 0] + 1] * (position - low)
    opacity = 0.62 * np.minimum(heat * 2.5, 1.0)
    return Image.fromarray((page * (1 - opacity) + colour * opacity).clip(0, 255).astype(np.uint8))


def draw_explanation(explanation: Explanation) -> Image.Image:
    """Draw the heatmap of the query (large) and of each word (small) on one colour scale."""
    evidence, image, grid = explanation.evidence, explanation.image, explanation.grid
    maximum = float(evidence.query_map.max()) if evidence.maps.numel() else 1.0
    query_panel = overlay_heatmap(image, evidence.query_map, grid, maximum, QUERY_PANEL)
    words = sorted(sorted(range(len(evidence.words)), key=lambda w: -float(evidence.scores[w]))[:MAX_WORDS])
    panels = [overlay_heatmap(image, evidence.maps[word], grid, maximum, WORD_PANEL) for word in words]
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns) if panels else 0
    cell = (max(p.width for p in panels) + MARGIN, max(p.height for p in panels) + 40) if panels else (0, 0)
    top = 74
    width = query_panel.width + columns * cell[0] + 3 * MARGIN
    height = top + max(query_panel.height, rows * cell[1]) + MARGIN + 34
    picture = Image.new("RGB", (width, height), "white")
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(14)
    pen.text((MARGIN, 12), _shorten(explanation.query, 80), fill="black", font=ImageFont.load_default(20))
    title = f"{explanation.document}, page {explanation.page}   visual score {evidence.score:.3f}"
    if explanation.retention is not None:
        title += f"   score retention {explanation.retention:.1f} %"
    pen.text((MARGIN, 42), _shorten(title, 110), fill=GREY, font=font)
    _paste(picture, query_panel, MARGIN, top)
    for i, (word, panel) in enumerate(zip(words, panels, strict=True)):
        x, y = query_panel.width + 2 * MARGIN + (i % columns) * cell[0], top + (i // columns) * cell[1]
        _paste(picture, panel, x, y + 22)
        label = f"{evidence.words[word]}  {float(evidence.scores[word]):.3f}"
        pen.text((x, y), _shorten(label, 28), fill="black", font=font)
    _draw_legend(picture, MARGIN, height - 28, maximum)
    return picture


def _paste(picture: Image.Image, panel: Image.Image, x: int, y: int) -> None:
    picture.paste(panel, (x, y))
    ImageDraw.Draw(picture).rectangle((x, y, x + panel.width - 1, y + panel.height - 1), outline=LIGHT_GREY)


def _draw_legend(picture: Image.Image, x: int, y: int, maximum: float) -> None:
    steps = torch.linspace(0, 1, 200)[None].repeat(12, 1)
    blank = Image.new("RGB", (200, 12), "white")
    picture.paste(overlay_heatmap(blank, steps.flatten(), PatchGrid.single(12, 200), 1.0, 200), (x + 18, y))
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
    pen.text((x, y - 1), "0", fill=GREY, font=font)
    pen.text((x + 226, y - 1), f"{maximum:.3f} score per patch", fill=GREY, font=font)


def _shorten(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
