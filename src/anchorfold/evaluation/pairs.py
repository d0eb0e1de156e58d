"""Query-page pairs for calibration: from a corpus of one's own, or from a training set on the hub."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.corpus import QUERIES_FILE, Corpus, local_corpus
from anchorfold.evaluation.training_set import SEED, TRAINING_SET, decode, draw_rows

COUNT = 500  # in the paper

Pair = tuple[str, Image.Image]


def corpus_pairs(corpora: Sequence[Corpus], pixels: int, count: int = COUNT, seed: int = SEED) -> Iterator[Pair]:
    """Queries with a page that answers them, drawn uniformly; pages come in their order, each rendered once."""
    candidates = [
        (number, page, query.text)
        for number, corpus in enumerate(corpora)
        for query in corpus.queries
        for page in sorted(query.relevant)
    ]
    random.Random(seed).shuffle(candidates)
    texts: dict[tuple[int, str], list[str]] = {}
    for number, page, text in candidates[:count]:
        texts.setdefault((number, page), []).append(text)
    for number, corpus in enumerate(corpora):
        relevant = {page for owner, page in texts if owner == number}
        for page, image in corpus.pages(pixels, only=relevant) if relevant else ():
            for text in texts[number, page]:
                yield text, image


def training_pairs(name: str, count: int = COUNT, seed: int = SEED) -> Iterator[Pair]:
    """Pairs of a data set with the columns `query` and `image`, drawn uniformly."""
    for row in draw_rows(name, count, ("query", "image"), seed):
        yield row["query"], decode(row["image"])


def find_pairs(source: str, pixels: int, count: int = COUNT, seed: int = SEED) -> Iterator[Pair]:
    """Pairs of a local corpus if `source` is one, else of a data set."""
    if (Path(source) / QUERIES_FILE).is_file():
        return corpus_pairs([local_corpus(source)], pixels, count, seed)
    return training_pairs(source, count, seed)


def available_pairs(source: str, count: int) -> int:
    """Return how many pairs `find_pairs` can give; a data set of the hub is assumed to have `count`."""
    if (Path(source) / QUERIES_FILE).is_file():
        return min(count, sum(len(query.relevant) for query in local_corpus(source).queries))
    return count


def held_out_pairs(
    source: str | None, corpora: Sequence[Corpus], pixels: int, count: int
) -> tuple[Iterator[Pair], str, bool]:
    """Pairs to choose layers with, where they are from, and whether they are the evaluated ones.

    Args:
        source: a folder or data set; None for the ColPali training set or, where no hub can be reached, `corpora`.
        corpora: what is evaluated.
        pixels: of a page, about.
        count: pairs.
    """
    if source is not None:
        return find_pairs(source, pixels, count), source, False
    try:
        next(training_pairs(TRAINING_SET, 1))
    except AnchorFoldError:
        return corpus_pairs(corpora, pixels, count), "the evaluated pages", True
    return training_pairs(TRAINING_SET, count), TRAINING_SET, False
