"""Text search in Qdrant: BM25 weights as sparse vectors, with the inverse document frequency computed by the engine.

A page is a bag of words, and of pairs of neighbouring words of compounds (`wi-fi`, `1,775`) and of scripts without
spaces. SQLite's full-text engine, in memory and over the few texts that are fetched, verifies phrases and cuts
passages.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import lru_cache
from itertools import pairwise

from anchorfold.databases.passages import folded_words
from anchorfold.storage.text_search import query_terms

SPARSE = "text"
K1, B = 1.2, 0.75  # of BM25, as in SQLite
AVERAGE_WORDS = 250  # of a page; constant, because weights are stored


def term_weights(text: str) -> dict[int, float]:
    """Return the BM25 weight of each term of a page, by the number of the term."""
    counts: Counter[str] = Counter()
    words = 0
    for chunk in text.split():
        own = folded_words(chunk)
        words += len(own)
        counts.update(own)
        counts.update(f"{first} {second}" for first, second in pairwise(own))
    norm = K1 * (1 - B + B * words / AVERAGE_WORDS)
    weights: dict[int, float] = {}
    for term, count in counts.items():
        number = term_number(term)
        weights[number] = max(weights.get(number, 0.0), count * (K1 + 1) / (count + norm))
    return weights


def query_numbers(query: str) -> list[int]:
    """Return the numbers of the terms of a query; empty if it has none."""
    phrases, terms = query_terms(query)
    numbers: dict[int, None] = {}
    for phrase in phrases:
        numbers.update(dict.fromkeys(term_number(word) for word in folded_words(phrase)))
    for term in terms:
        words = folded_words(term)
        parts = words if len(words) == 1 else [f"{first} {second}" for first, second in pairwise(words)]
        numbers.update(dict.fromkeys(map(term_number, parts)))
    return list(numbers)


@lru_cache(1 << 17)
def term_number(term: str) -> int:
    """Return a 32-bit number of a term."""
    return int.from_bytes(hashlib.blake2b(term.encode(errors="surrogatepass"), digest_size=4).digest(), "little")
