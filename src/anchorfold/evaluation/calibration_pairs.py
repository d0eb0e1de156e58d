"""Query-page pairs for calibration: from a local corpus or from a training set on the Hugging Face hub."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.corpus import QUERIES_FILE, Corpus, local_corpus
from anchorfold.evaluation.training_set import SEED, TRAINING_SET, Report, decode, require_training_set, sample_rows

COUNT = 500  # in the paper

Pair = tuple[str, Image.Image]


@dataclass(frozen=True)
class PairSource:
    """Pairs that are read again by each iteration, so that they need not be kept in memory."""

    draw: Callable[[], Iterator[Pair]]

    def __iter__(self) -> Iterator[Pair]:
        return self.draw()


def corpus_pairs(corpora: Sequence[Corpus], pixels: int, count: int = COUNT, seed: int = SEED) -> Iterator[Pair]:
    """Draw pairs of query and relevant page uniformly; each page is rendered once."""
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


def training_pairs(name: str, count: int = COUNT, seed: int = SEED, report: Report = lambda _: None) -> Iterator[Pair]:
    """Draw pairs uniformly from a data set with the columns `query` and `image`."""
    for row in sample_rows(name, count, ("query", "image"), "pairs", seed, report):
        yield row["query"], decode(row["image"])


def find_pairs(
    source: str, pixels: int, count: int = COUNT, seed: int = SEED, report: Report = lambda _: None
) -> PairSource:
    """Draw pairs from a local corpus or a data set."""
    if (Path(source) / QUERIES_FILE).is_file():
        return PairSource(lambda: corpus_pairs([local_corpus(source)], pixels, count, seed))
    return PairSource(lambda: training_pairs(source, count, seed, report))


def available_pairs(source: str, count: int) -> int:
    """Return the number of available pairs; a data set on the hub is assumed to have `count`."""
    if (Path(source) / QUERIES_FILE).is_file():
        return min(count, sum(len(query.relevant) for query in local_corpus(source).queries))
    return count


def held_out_pairs(
    source: str | None, corpora: Sequence[Corpus], pixels: int, count: int, report: Report = lambda _: None
) -> tuple[PairSource, str, bool]:
    """Return pairs to choose layers with, their source, and whether they are among the evaluated ones.

    Args:
        source: folder or data set; None for the ColPali training set or, without a hub, `corpora`.
        corpora: the evaluated corpora.
        pixels: approximate pixels per page.
        count: number of pairs.
        report: as in `sample_rows`.
    """
    if source is not None:
        return find_pairs(source, pixels, count, report=report), source, False
    try:
        require_training_set()
    except AnchorFoldError:
        return PairSource(lambda: corpus_pairs(corpora, pixels, count)), "the evaluated pages", True
    return find_pairs(TRAINING_SET, pixels, count, report=report), TRAINING_SET, False
