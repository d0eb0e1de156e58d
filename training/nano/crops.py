"""Streams of training images: pieces of real pages, clean or scanned, of invented text, posters and slides."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from training.nano import synth
from training.nano.corpus import load_page
from training.nano.posters import poster
from training.nano.scanning import scan, turn
from training.nano.script import Script
from training.nano.slides import slide
from training.nano.vocabulary import load_vocabulary

SCANNED = 0.35  # of the pieces of real pages
SHEETS = 0.5  # of the invented pieces: posters and slides; the others are plain text in many fonts


@dataclass
class Piece:
    """`pixels (H, W)` grey bytes, the `symbols` printed on it and their `boxes (n, 4)` in pixels; of a `real` page?"""

    pixels: np.ndarray
    symbols: str
    boxes: np.ndarray
    real: bool


def to_tensor(pixels: np.ndarray) -> Tensor:
    """Grey bytes to `(1, H, W)` in [-1, 1]."""
    return torch.from_numpy(pixels.astype(np.float32) / 127.5 - 1)[None]


def real_piece(path: Path, rng: random.Random, height: int, width: int) -> Piece:
    """A random window of a stored page at a random size, scanned or recoloured sometimes."""
    image, symbols, boxes = load_page(path)
    if scanned := rng.random() < SCANNED:
        image, boxes = scan(image, boxes, rng)
    scale = rng.uniform(0.8, 1.1) if rng.random() < 0.75 else rng.uniform(0.6, 0.8)
    image = image.resize((round(image.width * scale), round(image.height * scale)))
    boxes = boxes * scale
    left, top = (
        rng.randint(0, have - need) if have >= need else -rng.randint(0, need - have)
        for have, need in ((image.width, width), (image.height, height))
    )
    # A page smaller than the window lies on more paper of its own colour.
    paper = Image.new("L", (width, height), int(np.median(np.asarray(image))))
    paper.paste(image, (-left, -top))
    image = paper
    boxes = boxes - np.array([left, top, left, top], np.float32)
    inside = (boxes[:, 2] > 0) & (boxes[:, 3] > 0) & (boxes[:, 0] < width) & (boxes[:, 1] < height)
    symbols = "".join(s for s, keep in zip(symbols, inside, strict=True) if keep)
    return Piece(np.asarray(image) if scanned else recolour(image, rng), symbols, boxes[inside], real=True)


def sheet_piece(rng: random.Random, words: list[str], fonts: tuple[str, ...], height: int, width: int) -> Piece:
    """A poster or a slide that fills `height x width`; its type is large in slides, small and large in posters."""
    script = Script(rng, words)
    if rng.random() < 0.6:
        sheet = poster(rng, script, fonts, width, height, rng.uniform(9.5, 20))
    else:
        tall = min(height, round(width * rng.choice([0.5625, 0.75])))
        sheet = slide(rng, script, fonts, width, tall, tall * rng.uniform(0.035, 0.07))
    image, symbols, boxes = sheet.labelled()
    grey = synth.degrade(image.convert("L"), rng)
    page = Image.new("L", (width, height), int(np.asarray(grey)[-1].mean()))
    page.paste(grey, (0, 0))
    return Piece(np.asarray(page), symbols, boxes, real=False)


def recolour(image: Image.Image, rng: random.Random) -> np.ndarray:
    image = synth.degrade(image, rng) if rng.random() < 0.5 else image
    pixels = np.asarray(image)
    if rng.random() < 0.1:
        pixels = 255 - pixels
    return pixels


class Pieces(IterableDataset):
    """Endless pieces of `height x width`; a share of them from real pages, the rest invented."""

    def __init__(self, data: Path, fonts: Path, height: int, width: int, real: float, seed: int) -> None:
        self.paths = sorted((data / "pages" / "train").glob("*.npz"))
        self.words = load_vocabulary(data)[0]
        self.fonts = synth.latin_fonts(fonts)
        self.height, self.width, self.real, self.seed = height, width, real, seed

    def piece(self, rng: random.Random) -> Piece:
        if rng.random() < self.real:
            return real_piece(rng.choice(self.paths), rng, self.height, self.width)
        if rng.random() < SHEETS:
            return sheet_piece(rng, self.words, self.fonts, self.height, self.width)
        image, symbols, boxes = synth.make_crop(rng, self.fonts, self.words, self.height, self.width)
        if rng.random() < 0.25 and len(boxes):
            image, boxes = turn(image, boxes, rng.uniform(-1.5, 1.5), int(np.median(np.asarray(image))))
        return Piece(np.asarray(synth.degrade(image, rng)), symbols, boxes, real=False)

    def __iter__(self) -> Iterator[object]:
        worker = get_worker_info()
        rng = random.Random(f"{self.seed}/{worker.id if worker else 0}")
        while True:
            yield self.sample(rng)

    def sample(self, rng: random.Random) -> object:
        return self.piece(rng)
