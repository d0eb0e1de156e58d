"""Labelled crops: which patch shows which word, and which words are likely in queries."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anchorfold.backbones.nano.query import UNKNOWN_WEIGHT
from training.nano.crops import DEFAULT_SAMPLING, CropStream, Sampling, to_tensor
from training.nano.labels import assign_words, group_words, map_characters

SCALES = (1, 2, 4, 8)  # the reader processes full, half, quarter and optionally an eighth of the size


@dataclass
class Example:
    """Crop with its labels.

    Attributes:
        pixels: `(1, H, W)` in [-1, 1].
        patches: `(n,)` numbers of the patches that are used.
        words: Words of the crop.
        pairs: `(k, 2)` positions in `patches` and in `words`.
        shares: `(k,)` share of the patch that the word covers.
        sizes: `(words,)` relative type size of each word.
        characters: Symbols of the reader's cells at each of the `SCALES`.
        background: Positions in `patches` that show no word: blank patches, and graphics of synthetic pages (images of
            real pages may contain words that the text layer does not).
        real: Whether the crop is from a real page.
    """

    pixels: Tensor
    patches: Tensor
    words: list[str]
    pairs: Tensor
    shares: Tensor
    sizes: Tensor
    characters: list[Tensor]
    background: Tensor
    real: bool


class LabelledCrops(CropStream):
    """Crops with word labels; only a share of the blank patches is used."""

    def __init__(
        self, data: Path, fonts: Path, height: int, width: int, real_share: float, blank_share: float, seed: int,
        sampling: Sampling = DEFAULT_SAMPLING,
    ) -> None:  # fmt: skip
        super().__init__(data, fonts, height, width, real_share, seed, sampling)
        self.blank_share = blank_share

    def sample(self, rng: random.Random) -> Example:
        """Draw a crop and compute its labels."""
        crop = self.draw_crop(rng)
        rows, columns = self.height // 16, self.width // 32
        words = group_words(crop.symbols, crop.boxes)
        pairs, shares = assign_words(words, rows, columns)
        ink = has_ink(crop.pixels)
        shows = np.zeros(len(ink), bool)
        shows[pairs[:, 0]] = True
        background = ~shows & ~ink if crop.real else ~shows
        ink |= shows
        selected = np.flatnonzero(
            ink | (np.random.default_rng(rng.getrandbits(32)).random(len(ink)) < self.blank_share)
        )
        if not len(selected):
            selected = np.arange(8)
        position = np.full(rows * columns, -1)
        position[selected] = np.arange(len(selected))
        pairs[:, 0] = position[pairs[:, 0]]
        return Example(
            to_tensor(crop.pixels), torch.from_numpy(selected), words.texts, torch.from_numpy(pairs),
            torch.from_numpy(shares), torch.from_numpy(relative_sizes(words.boxes)),
            [torch.from_numpy(map_characters(crop.symbols, crop.boxes / s, self.height // s, self.width // s))
             for s in SCALES],
            torch.from_numpy(np.flatnonzero(background[selected])), crop.real,
        )  # fmt: skip


def has_ink(pixels: np.ndarray) -> np.ndarray:
    """Return a mask `(rows * columns,)` of the patches of `pixels (H, W)` that are not blank, ignoring fine grain."""
    rows, columns = pixels.shape[0] // 16, pixels.shape[1] // 32
    coarse = pixels.reshape(rows * 4, 4, columns * 8, 4).mean((1, 3), dtype=np.float32)
    cells = coarse.reshape(rows, 4, columns, 8)
    return (cells.max((1, 3)) - cells.min((1, 3))).flatten() > 24


def select_masked(example: Example, share: float, rng: random.Random) -> Tensor:
    """Select a share of the patches that show words at random, and return their mask `(n,)`."""
    mask = torch.zeros(len(example.patches), dtype=torch.bool)
    printed = example.pairs[:, 0].unique().tolist()
    mask[rng.sample(printed, round(share * len(printed)))] = True
    return mask


def relative_sizes(boxes: np.ndarray) -> np.ndarray:
    """Compute the type size `(n,)` of words relative to the median of the page, from 0.6 to 2.5."""
    if not len(boxes):
        return np.zeros(0, np.float32)
    height = boxes[:, 3] - boxes[:, 1]
    return np.clip(height / max(float(np.median(height)), 1e-3), 0.6, 2.5).astype(np.float32)


def estimate_query_weights(example: Example, weights: dict[str, float]) -> dict[str, float]:
    """Estimate how likely a query contains each distinct word of a crop.

    The estimate is tf-idf times the squared relative type size: pages repeat what they are about, and titles are large.
    """
    sizes: dict[str, float] = {}
    for word, size in zip(example.words, example.sizes.tolist(), strict=True):
        if len(word) > 1 or word.isdigit():
            sizes[word] = max(sizes.get(word, 0.0), size)
    counts = Counter(example.words)
    return {word: counts[word] * weights.get(word, UNKNOWN_WEIGHT) * size**2 for word, size in sizes.items()}
