"""Query-page pairs for calibration: from a corpus of one's own, or from a training set on the hub."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.corpus import Corpus, local_corpus

SEED, COUNT = 42, 500
HUB_SET = "vidore/colpali_train_set"
BUFFER = 2000  # examples that a stream is shuffled in

Pair = tuple[str, Image.Image]


def corpus_pairs(corpus: Corpus, pixels: int, count: int = COUNT, seed: int = SEED) -> Iterator[Pair]:
    """A random query of a random answered page each; pages come in the corpus's order, each rendered once."""
    candidates = [(page, query.text) for query in corpus.queries for page in sorted(query.relevant)]
    random.Random(seed).shuffle(candidates)
    wanted: dict[str, list[str]] = {}
    for page, text in candidates[:count]:
        wanted.setdefault(page, []).append(text)
    for page, image in corpus.pages(pixels, only=wanted):
        for text in wanted[page]:
            yield text, image


def hub_pairs(name: str, count: int = COUNT, seed: int = SEED, split: str = "train") -> Iterator[Pair]:
    """Pairs of a dataset with the columns `query` and `image`, such as the ColPali training set; streamed."""
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise AnchorFoldError("pairs from the hub need its library: pip install 'anchorfold[eval]'.") from error
    try:
        stream = load_dataset(name, split=split, streaming=True).shuffle(seed=seed, buffer_size=BUFFER)
        found = 0
        for row in stream:
            if row.get("query") and row.get("image") is not None:
                yield row["query"], row["image"].convert("RGB")
                found += 1
                if found == count:
                    return
    except (ConnectionError, FileNotFoundError, OSError, ValueError) as error:
        raise AnchorFoldError(f"{name} cannot be read as a dataset: {str(error).splitlines()[0]}.") from error
    if not found:
        raise AnchorFoldError(f"{name} holds no pairs: it needs the columns query and image.")


def find_pairs(source: str, pixels: int, count: int = COUNT, seed: int = SEED) -> Iterator[Pair]:
    """Pairs of a local corpus if `source` is one, else of a dataset."""
    if (Path(source) / "queries.jsonl").is_file():
        return corpus_pairs(local_corpus(source), pixels, count, seed)
    return hub_pairs(source, count, seed)
