"""nano's query side alone, in NumPy: a search needs its tables, not the page reader, nor the seconds torch takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from anchorfold.backbones.fingerprint import kind_of, weights_fingerprint
from anchorfold.backbones.nano.query import UNKNOWN_WEIGHT, WordIndex, query_words

WEIGHTS = Path(__file__).parent / "weights"
FAMILY = "nano"


class QuerySide:
    """Encodes queries as the whole model does."""

    def __init__(self, folder: Path = WEIGHTS) -> None:
        self.weights = load_file(folder / "model.safetensors")
        self.words = WordIndex.load(folder)

    @cached_property
    def fingerprint(self) -> str:
        """That of the whole model."""
        return weights_fingerprint(kind_of(FAMILY, causal=False), self.weights)

    def encode_queries(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`(words, 128)` a text."""
        dim = self.weights["words.weight"].shape[1]
        vectors = [[self._word_vector(word) for word in query_words(text)] for text in texts]
        return [np.array(some, np.float32).reshape(-1, dim) for some in vectors]

    def _word_vector(self, word: str) -> np.ndarray:
        """Its spelling and, if it is known, its own vector, scaled by its rarity."""
        row, features = self.words.rows.get(word, -1), self.words.spelling(word)
        vector = self.weights["spelling.weight"][features].astype(np.float32).mean(0)
        rarity = UNKNOWN_WEIGHT
        if row >= 0:
            vector += self.weights["words.weight"][row]
            rarity = self.weights["word_weights"][row]
        unit: np.ndarray = vector / max(float(np.linalg.norm(vector)), 1e-12)
        return unit * np.float32(rarity)
