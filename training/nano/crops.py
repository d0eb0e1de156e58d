"""Training images: crops of real pages (clean or scanned), typed letters, synthetic text, posters and slides."""

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

from training.nano import synthetic_text
from training.nano.corpus import load_page
from training.nano.labels import group_words
from training.nano.letters import draw_letter, select_typewriter_fonts
from training.nano.posters import compose_poster
from training.nano.scan_effects import rotate_page, scan
from training.nano.slides import compose_slide
from training.nano.text_generator import TextGenerator, insert_blends
from training.nano.vocabulary import load_vocabulary

WINDOWS = 2  # windows per page, of which the one with more text is used
MARGIN = 24  # pixels around a window for rotation
SHEET_WIDTH = 1200  # model input width of a full slide in pixels
LETTER_SCAN_SHARE = 0.75  # share of letters that get scan effects
LETTER_SIDE = 1100  # model input height of a full letter in pixels


@dataclass(frozen=True)
class Sampling:
    """Shares of the types of crops.

    Attributes:
        scans: Share of real pages that get scan effects.
        small: Share of real pages that are reduced to small print.
        sheets: Share of posters and slides among synthetic crops.
        letters: Share of typed letters among synthetic crops; the rest is plain text.
    """

    scans: float = 0.35
    small: float = 0.25
    sheets: float = 0.45
    letters: float = 0.15


DEFAULT_SAMPLING = Sampling()


@dataclass
class Crop:
    """Image with character labels.

    Attributes:
        pixels: `(H, W)` grey bytes.
        symbols: Printed characters.
        boxes: `(n, 4)` their boxes in pixels.
        real: Whether the crop is from a real page.
    """

    pixels: np.ndarray
    symbols: str
    boxes: np.ndarray
    real: bool


def to_tensor(pixels: np.ndarray) -> Tensor:
    """Convert grey bytes `(H, W)` to `(1, H, W)` in [-1, 1]."""
    return torch.from_numpy(pixels.astype(np.float32) / 127.5 - 1)[None]


def crop_page(path: Path, rng: random.Random, height: int, width: int, sampling: Sampling = DEFAULT_SAMPLING) -> Crop:
    """Crop a random window of a stored page at a random scale, with scan effects or colour changes on some."""
    page, symbols, boxes = load_page(path)
    scanned = rng.random() < sampling.scans
    scale = rng.uniform(0.8, 1.1) if rng.random() >= sampling.small else rng.uniform(0.6, 0.8)
    tall, wide = round(height / scale), round(width / scale)
    middles = boxes.reshape(-1, 2, 2).mean(1)
    corners = [sample_window(page, rng, tall, wide) for _ in range(WINDOWS)]
    left, top = max(corners, key=lambda c: int(((middles >= c) & (middles < np.add(c, (wide, tall)))).all(1).sum()))
    # Pages smaller than the window are padded in their own colour; the margin fills corners after rotation.
    background = int(np.median(np.asarray(page)[::4, ::4]))
    window = Image.new("L", (wide + 2 * MARGIN, tall + 2 * MARGIN), background)
    window.paste(page, (MARGIN - left, MARGIN - top))
    boxes = boxes + np.array([MARGIN - left, MARGIN - top] * 2, np.float32)
    if scanned:
        window, boxes = scan(window, boxes, rng, max(page.size))
    image = window.crop((MARGIN, MARGIN, MARGIN + wide, MARGIN + tall)).resize((width, height))
    boxes = (boxes - MARGIN) * np.array([width / wide, height / tall] * 2, np.float32)
    symbols, boxes = clip_boxes(symbols, boxes, height, width)
    return Crop(np.asarray(image) if scanned else recolour(image, rng), symbols, boxes, real=True)


def sample_window(page: Image.Image, rng: random.Random, height: int, width: int) -> tuple[int, int]:
    """Sample left and top of a window; a smaller page is placed anywhere in it."""
    spare = page.width - width, page.height - height
    left, top = (rng.randint(0, s) if s >= 0 else -rng.randint(0, -s) for s in spare)
    return left, top


def clip_boxes(symbols: str, boxes: np.ndarray, height: int, width: int) -> tuple[str, np.ndarray]:
    """Drop characters outside a window that starts at (0, 0); boxes `(n, 4)`."""
    inside = (boxes[:, 2] > 0) & (boxes[:, 3] > 0) & (boxes[:, 0] < width) & (boxes[:, 1] < height)
    return "".join(s for s, keep in zip(symbols, inside, strict=True) if keep), boxes[inside]


def crop_sheet(rng: random.Random, words: list[str], fonts: tuple[str, ...], height: int, width: int) -> Crop:
    """Crop a window of a synthetic poster or slide, at up to the scale at which the model sees full ones.

    Type in a small window is as large as on a full sheet: the letters of a title are wider than a patch.
    """
    script = TextGenerator(rng, words)
    wider = rng.uniform(1, max(1.0, SHEET_WIDTH / width))
    wide = round(width * wider)
    if rng.random() < 0.5:
        sheet = compose_poster(rng, script, fonts, wide, round(height * wider), rng.uniform(8, 20))
    else:
        tall = round(wide * rng.choice([0.5625, 0.75]))
        sheet = compose_slide(rng, script, fonts, wide, tall, tall * rng.uniform(0.035, 0.07))
    image, symbols, boxes = sheet.export_labels()
    left, top = sample_window(image, rng, height, width)
    top = max(top, 0)
    page = Image.new("L", (width, height), int(np.asarray(image.convert("L"))[-1].mean()))
    page.paste(image.convert("L"), (-left, -top))
    symbols, boxes = clip_boxes(symbols, boxes - np.array([left, top] * 2, np.float32), height, width)
    return Crop(np.asarray(synthetic_text.degrade(page, rng)), symbols, boxes, real=False)


def crop_letter(
    path: Path, rng: random.Random, fonts: tuple[str, ...], typewriters: tuple[str, ...], height: int, width: int
) -> Crop:
    """Crop a typed letter with the words of a stored page; most get scan effects."""
    _, symbols, boxes = load_page(path)
    words = group_words(symbols, boxes).texts
    words = words[rng.randrange(max(1, len(words) // 2)) :]
    image, symbols, boxes = draw_letter(rng, fonts, typewriters, words, height + 2 * MARGIN, width + 2 * MARGIN)
    if rng.random() < LETTER_SCAN_SHARE:
        image, boxes = scan(image, boxes, rng, LETTER_SIDE)
    image = image.crop((MARGIN, MARGIN, MARGIN + width, MARGIN + height))
    symbols, boxes = clip_boxes(symbols, boxes - MARGIN, height, width)
    return Crop(np.asarray(image), symbols, boxes, real=False)


def recolour(image: Image.Image, rng: random.Random) -> np.ndarray:
    """Degrade half of the images and invert a tenth."""
    image = synthetic_text.degrade(image, rng) if rng.random() < 0.5 else image
    pixels = np.asarray(image)
    if rng.random() < 0.1:
        pixels = 255 - pixels
    return pixels


class CropStream(IterableDataset):
    """Endless stream of crops: a share from real pages, the rest synthetic."""

    def __init__(
        self, data: Path, fonts: Path, height: int, width: int, real_share: float, seed: int,
        sampling: Sampling = DEFAULT_SAMPLING,
    ) -> None:  # fmt: skip
        self.paths = sorted((data / "pages" / "train").glob("*.npz"))
        self.words = insert_blends(load_vocabulary(data)[0], random.Random(seed))
        self.fonts = synthetic_text.list_fonts(fonts)
        self.typewriters = select_typewriter_fonts(self.fonts)
        self.height, self.width, self.real_share, self.seed = height, width, real_share, seed
        self.sampling = sampling

    def draw_crop(self, rng: random.Random) -> Crop:
        """Draw a crop of a random type."""
        if rng.random() < self.real_share:
            return crop_page(rng.choice(self.paths), rng, self.height, self.width, self.sampling)
        kind = rng.random()
        if kind < self.sampling.sheets:
            return crop_sheet(rng, self.words, self.fonts, self.height, self.width)
        if kind < self.sampling.sheets + self.sampling.letters:
            return crop_letter(rng.choice(self.paths), rng, self.fonts, self.typewriters, self.height, self.width)
        image, symbols, boxes = synthetic_text.draw_page(rng, self.fonts, self.words, self.height, self.width)
        if rng.random() < 0.25 and len(boxes):
            image, boxes = rotate_page(image, boxes, rng.uniform(-1.5, 1.5), int(np.median(np.asarray(image))))
        return Crop(np.asarray(synthetic_text.degrade(image, rng)), symbols, boxes, real=False)

    def __iter__(self) -> Iterator[object]:
        worker = get_worker_info()
        rng = random.Random(f"{self.seed}/{worker.id if worker else 0}")
        while True:
            yield self.sample(rng)

    def sample(self, rng: random.Random) -> object:
        """Draw one training example; subclasses add labels."""
        return self.draw_crop(rng)
