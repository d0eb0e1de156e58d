"""Labelled pieces for stages 2 and 3: which patch shows which word, and which words are likely to be asked for."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anchorfold.backbones.nano.query import UNKNOWN_WEIGHT
from training.nano.crops import Pieces, to_tensor
from training.nano.labels import character_map, group_words, patch_words

SIZES = (1, 2, 4, 8)  # the reader looks at the page at full, half, quarter and perhaps an eighth of the size


@dataclass
class Example:
    """One piece with its labels: patches to keep, words, who owns them, and how large each is printed `(n,)`.

    `paper` are those of the kept patches that surely show no word: blank ones, and ornament of invented pages (a real
    page may show words in its pictures that its text layer does not know).
    `characters` are the symbols under the reader's cells at each of the SIZES.
    Which words matter is learnt from `real` pages alone: an invented one is about nothing.
    """

    pixels: Tensor
    kept: Tensor
    words: list[str]
    pairs: Tensor
    shares: Tensor
    sizes: Tensor
    characters: list[Tensor]
    paper: Tensor
    real: bool


class WordPieces(Pieces):
    """Pieces with word labels; of blank patches only a share is kept: they teach little and cost much."""

    def __init__(
        self, data: Path, fonts: Path, height: int, width: int, real: float, blank_kept: float, seed: int
    ) -> None:
        super().__init__(data, fonts, height, width, real, seed)
        self.blank_kept = blank_kept

    def sample(self, rng: random.Random) -> Example:
        piece = self.piece(rng)
        rows, columns = self.height // 16, self.width // 32
        words = group_words(piece.symbols, piece.boxes)
        pairs, shares = patch_words(words, rows, columns)
        ink = inked(piece.pixels)
        shows = np.zeros(len(ink), bool)
        shows[pairs[:, 0]] = True
        paper = ~shows & ~ink if piece.real else ~shows
        ink |= shows
        chosen = np.flatnonzero(ink | (np.random.default_rng(rng.getrandbits(32)).random(len(ink)) < self.blank_kept))
        if not len(chosen):
            chosen = np.arange(8)
        position = np.full(rows * columns, -1)
        position[chosen] = np.arange(len(chosen))
        pairs[:, 0] = position[pairs[:, 0]]
        return Example(
            to_tensor(piece.pixels), torch.from_numpy(chosen), words.texts, torch.from_numpy(pairs),
            torch.from_numpy(shares), torch.from_numpy(word_sizes(words.boxes)),
            [torch.from_numpy(character_map(piece.symbols, piece.boxes / part, self.height // part, self.width // part))
             for part in SIZES],
            torch.from_numpy(np.flatnonzero(paper[chosen])), piece.real,
        )  # fmt: skip


def inked(pixels: np.ndarray) -> np.ndarray:
    """`(rows x columns,)` whether a patch of `pixels (H, W)` shows anything; grain of 4 x 4 pixels does not count."""
    rows, columns = pixels.shape[0] // 16, pixels.shape[1] // 32
    coarse = pixels.reshape(rows * 4, 4, columns * 8, 4).mean((1, 3), dtype=np.float32)
    cells = coarse.reshape(rows, 4, columns, 8)
    return (cells.max((1, 3)) - cells.min((1, 3))).flatten() > 24


def word_sizes(boxes: np.ndarray) -> np.ndarray:
    """`(n,)` how large each word is printed relative to the page's usual size, 0.6 to 2.5: titles are asked for."""
    if not len(boxes):
        return np.zeros(0, np.float32)
    height = boxes[:, 3] - boxes[:, 1]
    return np.clip(height / max(float(np.median(height)), 1e-3), 0.6, 2.5).astype(np.float32)


def word_values(example: Example, weights: dict[str, float]) -> dict[str, float]:
    """How much each distinct word of a piece is likely to be asked for.

    That is its rarity, more where it is printed large, times how often it is printed: what a page is about, it repeats.
    """
    sizes: dict[str, float] = {}
    for word, size in zip(example.words, example.sizes.tolist(), strict=True):
        if len(word) > 1 or word.isdigit():
            sizes[word] = max(sizes.get(word, 0.0), size)
    often = Counter(example.words)
    return {word: often[word] * weights.get(word, UNKNOWN_WEIGHT) * size**2 for word, size in sizes.items()}
