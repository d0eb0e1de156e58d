"""Labelled pages of every kind that nano should read: documents, their scans, posters and slides, all unseen."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from training.nano import measuring_set
from training.nano.corpus import load_page
from training.nano.posters import draw_poster
from training.nano.scanning import scan
from training.nano.slides import draw_slide


def labelled_pages(
    data: Path, fonts: Path, words: Path, count: int, seed: int
) -> Iterator[tuple[str, Image.Image, str, np.ndarray]]:
    """`count` pages of each kind with their symbols and boxes `(n, 4)` in pixels."""
    paths = sorted((data / "pages" / "held_out").glob("*.npz"))
    for path in random.Random(seed).sample(paths, min(count, len(paths))):
        image, symbols, boxes = load_page(path)
        yield "documents", image, symbols, boxes
        scanned, moved = scan(image, boxes, random.Random(f"{seed}/{path.name}"))
        yield "scans", scanned, symbols, moved
    for kind, draw in (("posters", draw_poster), ("slides", draw_slide)):
        for image, symbols, boxes, _ in measuring_set.sheets(draw, fonts, words, count, seed):
            yield kind, image, symbols, boxes
