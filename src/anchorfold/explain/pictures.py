"""A page and a query to a picture: the page with the evidence lit, for all words and for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from anchorfold.documents.originals import find_image
from anchorfold.errors import AnchorFoldError
from anchorfold.explain.evidence import Evidence, evidence, raster
from anchorfold.page import PatchGrid
from anchorfold.scoring import score_retention

if TYPE_CHECKING:
    from anchorfold.index import Index

# From little to much: yellow, orange, red, magenta, ever darker; seen with any colour vision, on any paper.
COLOURS = np.array([(253, 224, 71), (251, 146, 60), (239, 68, 68), (200, 20, 130)], np.float32)
PANEL, SMALL, MARGIN, MOST_WORDS = 720, 230, 16, 8


@dataclass(frozen=True)
class Explanation:
    """Why one page matches one query. `retention` (Pair-SR, percent) is None if the original is not at hand.

    >>> explanation = explain(index, "net revenue", "reports/annual.pdf", page=2)
    >>> explanation.evidence.words, explanation.is_original
    (('net', 'revenue'), True)
    >>> draw(explanation).size[0] > 500
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
    """Find out why a page matches; the share of the full index's score is measured where the original is at hand."""
    encoded_page, row = index.page(document, page)
    if encoded_page.grid is None:
        raise AnchorFoldError(f"{index.settings.model} does not say where its vectors lie on a page: nothing to draw.")
    explained = index.model.explain_query(query)
    answer = evidence(explained.vectors, explained.labels, explained.words, encoded_page)
    image, original = find_image(row, index.model.page_pixels)
    retention = None
    if original and compare_full and answer.score:
        (full,) = index.model.encode_pages([image])
        retention = score_retention(explained.vectors, full, encoded_page)
    return Explanation(query, row["document"], page, answer, encoded_page.grid, image, original, retention)


def light(image: Image.Image, values: torch.Tensor, grid: PatchGrid, most: float, longer: int) -> Image.Image:
    """The page, `longer` pixels on its longer side, with patch values `(N,)` lit; `most` is the top of the scale."""
    scale = longer / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    paper = np.asarray(image.convert("RGB").resize(size, Image.Resampling.LANCZOS), np.float32)
    heat = (raster(values, grid, *size) / max(most, 1e-9)).clamp(0, 1).sqrt().numpy()[..., None]
    position = heat * (len(COLOURS) - 1)
    low = np.clip(position.astype(int), 0, len(COLOURS) - 2)
    colour = COLOURS[low[..., 0]] * (1 - (position - low)) + COLOURS[low[..., 0] + 1] * (position - low)
    cover = 0.62 * np.minimum(heat * 2.5, 1.0)
    return Image.fromarray((paper * (1 - cover) + colour * cover).clip(0, 255).astype(np.uint8))


def draw(explanation: Explanation) -> Image.Image:
    """One picture: the whole query large, each word small, all on one scale."""
    answer, image, grid = explanation.evidence, explanation.image, explanation.grid
    most = float(answer.whole.max()) if answer.maps.numel() else 1.0
    main = light(image, answer.whole, grid, most, PANEL)
    shown = sorted(range(len(answer.words)), key=lambda w: -float(answer.scores[w]))[:MOST_WORDS]
    small = [light(image, answer.maps[w], grid, most, SMALL) for w in sorted(shown)]
    columns = 2 if len(small) > 1 else len(small)
    rows = -(-len(small) // columns) if small else 0
    cell = (max(s.width for s in small) + MARGIN, max(s.height for s in small) + 40) if small else (0, 0)
    head = 74
    size = (main.width + columns * cell[0] + 3 * MARGIN, head + max(main.height, rows * cell[1]) + MARGIN + 34)
    picture = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(picture)
    title, plain = ImageFont.load_default(20), ImageFont.load_default(14)
    pen.text((MARGIN, 12), shorten(explanation.query, 80), fill="black", font=title)
    line = f"{explanation.document}, page {explanation.page}   score {answer.score:.3f}"
    if explanation.retention is not None:
        line += f"   keeps {explanation.retention:.1f} % of the full index's score"
    pen.text((MARGIN, 42), shorten(line, 110), fill=(80, 80, 80), font=plain)
    picture.paste(main, (MARGIN, head))
    for i, (number, one) in enumerate(zip(sorted(shown), small, strict=True)):
        x = main.width + 2 * MARGIN + (i % columns) * cell[0]
        y = head + (i // columns) * cell[1]
        picture.paste(one, (x, y + 22))
        pen.rectangle((x, y + 22, x + one.width - 1, y + 21 + one.height), outline=(200, 200, 200))
        label = f"{answer.words[number]}  {float(answer.scores[number]):.3f}"
        pen.text((x, y), shorten(label, 28), fill="black", font=plain)
    pen.rectangle((MARGIN, head, MARGIN + main.width - 1, head + main.height - 1), outline=(200, 200, 200))
    legend(picture, MARGIN, size[1] - 28, most)
    return picture


def legend(picture: Image.Image, x: int, y: int, most: float) -> None:
    """The scale that all maps share."""
    steps = torch.linspace(0, 1, 200)[None].repeat(12, 1)
    bar = light(Image.new("RGB", (200, 12), "white"), steps.flatten(), PatchGrid.single(12, 200), 1.0, 200)
    picture.paste(bar, (x + 18, y))
    pen, font = ImageDraw.Draw(picture), ImageFont.load_default(13)
    pen.text((x, y - 1), "0", fill=(80, 80, 80), font=font)
    pen.text((x + 226, y - 1), f"{most:.3f} of the score, a patch", fill=(80, 80, 80), font=font)


def shorten(text: str, most: int) -> str:
    """A text that fits."""
    return text if len(text) <= most else text[: most - 3] + "..."
