"""Which word of a query each of its vectors belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class ExplainedQuery:
    """`vectors (T, d)`, the query's `words`, and for each vector its word's number (None: a special token)."""

    vectors: Tensor
    words: list[str]
    labels: list[int | None]


def label_tokens(text: str, ids: Tensor, tokenizer: Any) -> tuple[list[str], list[int | None]]:
    """The words of a query, and which of them each token of its prompt belongs to."""
    return label_pieces(text, [tokenizer.decode([i]) for i in ids.tolist()])


def label_pieces(text: str, pieces: Sequence[str]) -> tuple[list[str], list[int | None]]:
    """Which word of a text each piece of a tokenised prompt belongs to, by where the text lies in the prompt."""
    words: list[str] = []
    owner: list[int] = []
    for match in re.finditer(r"\S+", text):
        owner += [len(words)] * len(match.group())
        words.append(match.group())
    letters = "".join(words).casefold()
    # Tokenisers treat white space each in its own way: compare without.
    plain = ["".join(p.split()).replace("\u2581", "").casefold() for p in pieces]
    start = "".join(plain).rfind(letters)
    labels: list[int | None] = []
    at = 0
    for piece in plain:
        offset = at - start if start >= 0 else -1
        labels.append(owner[offset] if piece and 0 <= offset < len(owner) else None)
        at += len(piece)
    return words, labels
