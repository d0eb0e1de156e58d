"""Streams of training images: pieces of invented and of real pages, and whole real pages."""

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
from training.nano.vocabulary import load_vocabulary


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
    """A random window of a stored page at a random size, black and white sometimes swapped."""
    image, symbols, boxes = load_page(path)
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
    return Piece(recolour(image, rng), symbols, boxes[inside], real=True)


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
        image, symbols, boxes = synth.make_crop(rng, self.fonts, self.words, self.height, self.width)
        if rng.random() < 0.25 and len(boxes):
            image, boxes = synth.skew(image, boxes, rng)
        return Piece(np.asarray(synth.degrade(image, rng)), symbols, boxes, real=False)

    def __iter__(self) -> Iterator[object]:
        worker = get_worker_info()
        rng = random.Random(f"{self.seed}/{worker.id if worker else 0}")
        while True:
            yield self.sample(rng)

    def sample(self, rng: random.Random) -> object:
        return self.piece(rng)
