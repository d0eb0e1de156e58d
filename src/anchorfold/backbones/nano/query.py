"""The query side: words to vectors, by spelling and, for known words, by meaning.

torch is imported where it is used: `query_side` does without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from anchorfold.backbones.nano.text import spelling_features, split_words

if TYPE_CHECKING:
    from torch import Tensor

VOCABULARY_FILE = "vocabulary.txt"
MAX_WORDS = 64
UNKNOWN_WEIGHT = 0.9


class WordIndex:
    """Known words in order of their rows in the model's table."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.rows = {w: i for i, w in enumerate(self.words)}
        self.spelling = lru_cache(200_000)(spelling_features)

    @classmethod
    def load(cls, folder: Path) -> WordIndex:
        """Read the vocabulary beside a checkpoint."""
        return cls((folder / VOCABULARY_FILE).read_text().split("\n"))

    def __len__(self) -> int:
        return len(self.words)

    def lookup(self, words: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Rows `(n,)` (-1 for unknown words), and their spelling features as one flat list with offsets `(n,)`."""
        import torch

        rows = torch.tensor([self.rows.get(w, -1) for w in words], dtype=torch.long)
        grams = [self.spelling(w) for w in words]
        flat = torch.tensor([b for g in grams for b in g], dtype=torch.long)
        lengths = torch.tensor([0, *(len(g) for g in grams)][: len(grams)], dtype=torch.long)
        return rows, flat, lengths.cumsum(0)


def query_words(text: str) -> list[str]:
    """The words of a query that count, in order, each once."""
    return list(dict.fromkeys(split_words(text)))[:MAX_WORDS]


def word_vectors(own: Tensor, spelling: Tensor, rows: Tensor, features: Tensor, offsets: Tensor) -> Tensor:
    """Unit vectors `(n, d)` of words: the mean of their spelling features plus, for known words, one of their own.

    Args:
        own: `(vocabulary, d)` vectors of known words.
        spelling: `(features, d)` vectors of spelling features.
        rows: rows of `own`, as `WordIndex.lookup` returns them.
        features: rows of `spelling`, as `WordIndex.lookup` returns them.
        offsets: where the features of each word begin.
    """
    import torch.nn.functional as F

    own_vectors = F.embedding(rows.clamp(min=0), own) * (rows >= 0)[:, None]
    return F.normalize(F.embedding_bag(features, spelling, offsets, mode="mean") + own_vectors, dim=-1)


def encode_query(text: str, index: WordIndex, own: Tensor, spelling: Tensor, weights: Tensor) -> Tensor:
    """One vector a distinct word, in order, scaled by the word's rarity (0 to 1): `(words, d)`."""
    import torch

    words = query_words(text)
    if not words:
        return own.new_zeros(0, own.shape[1])
    rows, features, offsets = (x.to(own.device) for x in index.lookup(words))
    scale = torch.where(rows >= 0, weights[rows.clamp(min=0)].float(), UNKNOWN_WEIGHT)
    return word_vectors(own, spelling, rows, features, offsets).float() * scale[:, None]


def rarity(pages_with_word: int, pages: int) -> float:
    """A word's weight in a query, from 0 (on every page) to 1 (on none)."""
    return math.log(1 + pages / max(pages_with_word, 1)) / math.log(1 + pages)
