"""nano's query side alone: a search needs its tables, not the page reader, nor the seconds that importing it takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from anchorfold.backbones.fingerprint import kind_of, weights_fingerprint
from anchorfold.backbones.nano.query import WordIndex, encode_query

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

    @torch.no_grad()
    def encode_queries(self, texts: Sequence[str]) -> list[Tensor]:
        """`(words, 128)` a text."""
        own, spelling, rarity = (self.weights[n].float() for n in ("words.weight", "spelling.weight", "word_weights"))
        return [encode_query(text, self.words, own, spelling, rarity) for text in texts]
