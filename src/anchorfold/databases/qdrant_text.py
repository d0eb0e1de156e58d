"""Text search in Qdrant: BM25 weights as sparse vectors, with the inverse document frequency computed by the engine.

A page is a bag of words, and of pairs of neighbouring words of compounds (`wi-fi`, `1,775`) and of scripts without
spaces. SQLite's full-text engine, in memory and over the few texts that are fetched, verifies phrases and cuts
passages.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import lru_cache
from itertools import pairwise

from anchorfold.storage.records import Snippet
from anchorfold.storage.schema import TOKENIZER
from anchorfold.storage.text_search import (
    CLOSING,
    GAP,
    OPENING,
    SNIPPET_WORDS,
    as_snippet,
    joined,
    match_expression,
    query_terms,
    spaced,
)  # fmt: skip

SPARSE = "text"
K1, B = 1.2, 0.75  # of BM25, as in SQLite
AVERAGE_WORDS = 250  # of a page; constant, because weights are stored
_WORD = re.compile(r"[^\W_]+")
_LAST_MARKED = 0x2000  # characters with diacritics are below


def term_weights(text: str) -> dict[int, float]:
    """Return the BM25 weight of each term of a page, by the number of the term."""
    counts: Counter[str] = Counter()
    words = 0
    for chunk in text.split():
        own = _words(chunk)
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
        numbers.update(dict.fromkeys(term_number(word) for word in _words(phrase)))
    for term in terms:
        words = _words(term)
        parts = words if len(words) == 1 else [f"{first} {second}" for first, second in pairwise(words)]
        numbers.update(dict.fromkeys(map(term_number, parts)))
    return list(numbers)


@lru_cache(1 << 17)
def term_number(term: str) -> int:
    """Return a 32-bit number of a term."""
    return int.from_bytes(hashlib.blake2b(term.encode(errors="surrogatepass"), digest_size=4).digest(), "little")


def _words(text: str) -> list[str]:
    """Return the words of a text in lower case and without diacritics, as SQLite's tokenizer does."""
    return _WORD.findall(spaced(text).translate(_folded()).lower())


@lru_cache(1)
def _folded() -> dict[int, str | None]:
    table: dict[int, str | None] = {}
    for code in range(0x80, _LAST_MARKED):
        decomposed = unicodedata.normalize("NFD", chr(code))
        if unicodedata.category(decomposed[0]) == "Mn":
            table[code] = None if code < 0x370 else chr(code)
        elif len(decomposed) > 1:
            table[code] = decomposed[0]
    return table


class Passages:
    """Full-text search over a few texts, by key, in memory."""

    def __init__(self, query: str) -> None:
        self.expression = match_expression(query)

    def snippets(self, texts: Mapping[str, str]) -> dict[str, Snippet]:
        """Return a passage for each text that matches."""
        shown = f"snippet(texts, 0, '{OPENING}', '{CLOSING}', '{GAP}', {SNIPPET_WORDS})"
        return {key: as_snippet(joined(marked)) for key, marked in self._search(texts, shown)}

    def words(self, text: str) -> list[str]:
        """Return the words of a text that match, as they occur in it, once each."""
        for _, marked in self._search({"": text}, f"highlight(texts, 0, '{OPENING}', '{CLOSING}')"):
            shown = as_snippet(joined(marked), one_line=False)
            return list(dict.fromkeys(shown.text[first:last] for first, last in shown.matches))
        return []

    def _search(self, texts: Mapping[str, str], shown: str) -> Iterator[tuple[str, str]]:
        if not self.expression or not texts:
            return
        keys = list(texts)
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.execute(f"CREATE VIRTUAL TABLE texts USING fts5 (text, tokenize='{TOKENIZER}')")
            rows = ((number, spaced(texts[key])) for number, key in enumerate(keys))
            connection.executemany("INSERT INTO texts (rowid, text) VALUES (?, ?)", rows)
            query = f"SELECT rowid, {shown} FROM texts WHERE texts MATCH ?"
            for number, marked in connection.execute(query, (self.expression,)):
                yield keys[number], marked
