"""Streams of training images: pieces of real pages, clean or scanned, of letters, invented text, posters and slides."""

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
from training.nano.labels import group_words
from training.nano.letters import letter, typewriter_fonts
from training.nano.posters import poster
from training.nano.scanning import scan, turn
from training.nano.script import Script, with_blends
from training.nano.slides import slide
from training.nano.vocabulary import load_vocabulary

SCANNED = 0.35  # of the pieces of real pages
WINDOWS = 2  # of a page to choose from: the one with more text
MARGIN = 24  # pixels around a window, while it is scanned
SHEET_WIDTH = 1200  # pixels that the model sees of a whole slide
SHEETS = 0.45  # of the invented pieces: posters and slides
LETTERS = 0.15  # of them; the others are plain text in many fonts
SCANNED_LETTERS = 0.75  # of the letters
LETTER_SIDE = 1100  # pixels that the model sees of a whole letter's height


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
    page, symbols, boxes = load_page(path)
    scanned = rng.random() < SCANNED
    scale = rng.uniform(0.8, 1.1) if rng.random() < 0.75 else rng.uniform(0.6, 0.8)
    tall, wide = round(height / scale), round(width / scale)
    middles = boxes.reshape(-1, 2, 2).mean(1)
    corners = [window_corner(page, rng, tall, wide) for _ in range(WINDOWS)]
    left, top = max(corners, key=lambda c: int(((middles >= c) & (middles < np.add(c, (wide, tall)))).all(1).sum()))
    # A page smaller than the window lies on more paper of its own colour; the margin is for what turning brings in.
    paper = int(np.median(np.asarray(page)[::4, ::4]))
    window = Image.new("L", (wide + 2 * MARGIN, tall + 2 * MARGIN), paper)
    window.paste(page, (MARGIN - left, MARGIN - top))
    boxes = boxes + np.array([MARGIN - left, MARGIN - top] * 2, np.float32)
    if scanned:
        window, boxes = scan(window, boxes, rng, max(page.size))
    image = window.crop((MARGIN, MARGIN, MARGIN + wide, MARGIN + tall)).resize((width, height))
    boxes = (boxes - MARGIN) * np.array([width / wide, height / tall] * 2, np.float32)
    symbols, boxes = visible(symbols, boxes, height, width)
    return Piece(np.asarray(image) if scanned else recolour(image, rng), symbols, boxes, real=True)


def window_corner(page: Image.Image, rng: random.Random, height: int, width: int) -> tuple[int, int]:
    """Left and top of a random window; a page that is smaller lies anywhere in it."""
    spare = page.width - width, page.height - height
    left, top = (rng.randint(0, s) if s >= 0 else -rng.randint(0, -s) for s in spare)
    return left, top


def visible(symbols: str, boxes: np.ndarray, height: int, width: int) -> tuple[str, np.ndarray]:
    """The characters of which something is seen in a window that begins at 0, 0; boxes `(n, 4)`."""
    inside = (boxes[:, 2] > 0) & (boxes[:, 3] > 0) & (boxes[:, 0] < width) & (boxes[:, 1] < height)
    return "".join(s for s, keep in zip(symbols, inside, strict=True) if keep), boxes[inside]


def sheet_piece(rng: random.Random, words: list[str], fonts: tuple[str, ...], height: int, width: int) -> Piece:
    """A window of a poster or a slide that is as wide as it or wider, up to what the model sees of a whole one.

    In a small window type is as large as on a whole sheet: a title's letters are wider than a patch.
    """
    script = Script(rng, words)
    wider = rng.uniform(1, max(1.0, SHEET_WIDTH / width))
    wide = round(width * wider)
    if rng.random() < 0.5:
        sheet = poster(rng, script, fonts, wide, round(height * wider), rng.uniform(8, 20))
    else:
        tall = round(wide * rng.choice([0.5625, 0.75]))
        sheet = slide(rng, script, fonts, wide, tall, tall * rng.uniform(0.035, 0.07))
    image, symbols, boxes = sheet.labelled()
    left, top = window_corner(image, rng, height, width)
    top = max(top, 0)
    page = Image.new("L", (width, height), int(np.asarray(image.convert("L"))[-1].mean()))
    page.paste(image.convert("L"), (-left, -top))
    symbols, boxes = visible(symbols, boxes - np.array([left, top] * 2, np.float32), height, width)
    return Piece(np.asarray(synth.degrade(page, rng)), symbols, boxes, real=False)


def letter_piece(
    path: Path, rng: random.Random, fonts: tuple[str, ...], typewriters: tuple[str, ...], height: int, width: int
) -> Piece:
    """A piece of a letter that says what a stored page does, mostly scanned."""
    _, symbols, boxes = load_page(path)
    words = group_words(symbols, boxes).texts
    words = words[rng.randrange(max(1, len(words) // 2)) :]
    image, symbols, boxes = letter(rng, fonts, typewriters, words, height + 2 * MARGIN, width + 2 * MARGIN)
    if rng.random() < SCANNED_LETTERS:
        image, boxes = scan(image, boxes, rng, LETTER_SIDE)
    image = image.crop((MARGIN, MARGIN, MARGIN + width, MARGIN + height))
    symbols, boxes = visible(symbols, boxes - MARGIN, height, width)
    return Piece(np.asarray(image), symbols, boxes, real=False)


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
        self.words = with_blends(load_vocabulary(data)[0], random.Random(seed))
        self.fonts = synth.latin_fonts(fonts)
        self.typewriters = typewriter_fonts(self.fonts)
        self.height, self.width, self.real, self.seed = height, width, real, seed

    def piece(self, rng: random.Random) -> Piece:
        if rng.random() < self.real:
            return real_piece(rng.choice(self.paths), rng, self.height, self.width)
        kind = rng.random()
        if kind < SHEETS:
            return sheet_piece(rng, self.words, self.fonts, self.height, self.width)
        if kind < SHEETS + LETTERS:
            return letter_piece(rng.choice(self.paths), rng, self.fonts, self.typewriters, self.height, self.width)
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
