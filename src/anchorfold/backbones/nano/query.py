"""Query encoding: one vector per word, looked up by spelling and, for known words, by the word itself.

`NanoQueryEncoder` needs NumPy only. torch is imported inside the functions that use it, so that a search from the
command line does not load it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors.numpy import load_file

from anchorfold.backbones.nano.text import spelling_features, split_words
from anchorfold.backbones.weights import model_kind, weights_fingerprint

if TYPE_CHECKING:
    from torch import Tensor

FAMILY = "nano"
WEIGHTS = Path(__file__).parent / "weights"
VOCABULARY_FILE = "vocabulary.txt"
MAX_WORDS = 64
UNKNOWN_WEIGHT = 0.9


class Vocabulary:
    """Known words in the order of their rows in the embedding table."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        self.rows = {w: i for i, w in enumerate(self.words)}
        self.spelling = lru_cache(200_000)(spelling_features)

    @classmethod
    def load(cls, folder: Path) -> Vocabulary:
        """Read the vocabulary of a checkpoint."""
        return cls((folder / VOCABULARY_FILE).read_text().split("\n"))

    def __len__(self) -> int:
        return len(self.words)

    def lookup(self, words: Sequence[str]) -> tuple[Tensor, Tensor, Tensor]:
        """Look up table rows and spelling features.

        Returns:
            `(n,)` rows, -1 for unknown words; `(m,)` features of all words; `(n,)` offset of each word's features.
        """
        import torch

        rows = torch.tensor([self.rows.get(w, -1) for w in words], dtype=torch.long)
        features = [self.spelling(w) for w in words]
        flat = torch.tensor([f for word in features for f in word], dtype=torch.long)
        lengths = torch.tensor([0, *(len(word) for word in features)][: len(features)], dtype=torch.long)
        return rows, flat, lengths.cumsum(0)


def extract_words(text: str) -> list[str]:
    """List the distinct words of a query in order, at most `MAX_WORDS`."""
    return list(dict.fromkeys(split_words(text)))[:MAX_WORDS]


def embed_words(table: Tensor, spelling: Tensor, rows: Tensor, features: Tensor, offsets: Tensor) -> Tensor:
    """Compute unit vectors of words: the mean of their spelling features plus, for known words, their own vector.

    Args:
        table: `(vocabulary, d)` vectors of known words.
        spelling: `(features, d)` vectors of spelling features.
        rows: `(n,)` rows of `table`, see `Vocabulary.lookup`.
        features: `(m,)` rows of `spelling`.
        offsets: `(n,)` position of each word's first feature.

    Returns:
        `(n, d)` unit vectors.
    """
    import torch.nn.functional as F

    own = F.embedding(rows.clamp(min=0), table) * (rows >= 0)[:, None]
    return F.normalize(F.embedding_bag(features, spelling, offsets, mode="mean") + own, dim=-1)


def encode_query(text: str, vocabulary: Vocabulary, table: Tensor, spelling: Tensor, weights: Tensor) -> Tensor:
    """Encode a query as one vector per distinct word, scaled by its inverse document frequency (0 to 1): `(n, d)`."""
    import torch

    words = extract_words(text)
    if not words:
        return table.new_zeros(0, table.shape[1])
    rows, features, offsets = (x.to(table.device) for x in vocabulary.lookup(words))
    scale = torch.where(rows >= 0, weights[rows.clamp(min=0)].float(), UNKNOWN_WEIGHT)
    return embed_words(table, spelling, rows, features, offsets).float() * scale[:, None]


class NanoQueryEncoder:
    """Query encoder in NumPy, without the page encoder; its vectors equal those of the full model."""

    def __init__(self, folder: Path = WEIGHTS) -> None:
        self.weights = load_file(folder / "model.safetensors")
        self.vocabulary = Vocabulary.load(folder)
        self.is_causal = bool(json.loads((folder / "config.json").read_text()).get("is_causal", False))

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the full model."""
        return weights_fingerprint(model_kind(FAMILY, self.is_causal), self.weights)

    def encode_queries(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode each text as `(n, d)`, one vector per distinct word."""
        dim = self.weights["words.weight"].shape[1]
        vectors = [[self._encode_word(word) for word in extract_words(text)] for text in texts]
        return [np.array(query, np.float32).reshape(-1, dim) for query in vectors]

    def _encode_word(self, word: str) -> np.ndarray:
        row, features = self.vocabulary.rows.get(word, -1), self.vocabulary.spelling(word)
        vector = self.weights["spelling.weight"][features].astype(np.float32).mean(0)
        weight = UNKNOWN_WEIGHT
        if row >= 0:
            vector += self.weights["words.weight"][row]
            weight = self.weights["word_weights"][row]
        unit: np.ndarray = vector / max(float(np.linalg.norm(vector)), 1e-12)
        return unit * np.float32(weight)
