"""Queries drawn from the text of pages, for comparisons without labelled queries."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

PHRASE = 4  # words
TITLE_CHARACTERS = 100
WORD = re.compile(r"[^\W\d_]{3,}")


class DrawnQuery(NamedTuple):
    """A query with the number of its page in the texts, and its kind: title or phrase."""

    page: int
    kind: str
    text: str


def draw_queries(texts: Sequence[str]) -> list[DrawnQuery]:
    """Draw the first line with two words or more, and the phrase with the rarest words, of each page.

    Examples:
        >>> [query.text for query in draw_queries(["Annual report\\nnet revenue by region", "", "12"])]
        ['Annual report', 'annual report net revenue']
    """
    words = [WORD.findall(text.lower()) for text in texts]
    frequency = Counter(word for page in words for word in set(page))
    queries = []
    for number, (text, page) in enumerate(zip(texts, words, strict=True)):
        lines = (line.strip() for line in text.splitlines())
        title = next((line for line in lines if len(WORD.findall(line)) >= 2), None)
        if title is not None:
            queries.append(DrawnQuery(number, "title", title[:TITLE_CHARACTERS]))
        if len(page) > PHRASE:
            rarity = np.convolve([-np.log(frequency[w] / len(texts)) for w in page], np.ones(PHRASE), "valid")
            start = int(rarity.argmax())
            queries.append(DrawnQuery(number, "phrase", " ".join(page[start : start + PHRASE])))
    return queries
