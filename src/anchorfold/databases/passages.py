"""Words of texts as SQLite's full-text engine splits them, and passages of a few texts that match a query."""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import lru_cache

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
    spaced,
)

_WORD = re.compile(r"[^\W_]+")
_LAST_MARKED = 0x2000  # characters with diacritics are below


def folded_words(text: str) -> list[str]:
    """Return the words of a text in lower case and without diacritics; characters of unspaced scripts are words.

    Examples:
        >>> folded_words("Crème brûlée, 年報")
        ['creme', 'brulee', '年', '報']
    """
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
