"""How well nano reads: the right word first among 5,000, from pixels only, in unseen fonts and unseen documents.

    python -m training.nano.evaluate DATA_FOLDER FONT_FOLDER --model FOLDER

How well it finds and survives compression is measured by `anchorfold eval CORPUS --model FOLDER`.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import anchorfold
from anchorfold.backbones.nano.processor import NanoImageProcessor
from anchorfold.backbones.nano.retriever import Nano
from training.nano import synth
from training.nano.corpus import load_page
from training.nano.labels import Words, group_words, patch_words
from training.nano.vocabulary import load_vocabulary

CANDIDATES = 5000
CLEAR = 0.75  # a patch of one word gives it at least this share; the others straddle two
HEIGHTS = (12, 16, 24)  # line heights in pixels that split the measure: small print, body text, and two of headings


def labelled_images(
    data: Path, fonts: Path, count: int, seed: int
) -> Iterator[tuple[str, Image.Image, str, np.ndarray]]:
    """Unseen fonts (on invented pages those of offices and publishers, and of every kind; the text of unseen documents
    set anew), and unseen documents as they are."""
    unseen = synth.latin_fonts(fonts, held_out=True)
    ordinary = tuple(path for family in synth.font_families(unseen)[0] for path in family)
    words = load_vocabulary(data)[0]
    for kind, chosen in (("unseen ordinary fonts", ordinary), ("unseen fonts of every kind", unseen)):
        rng = random.Random(f"{seed}/{kind}")
        for _ in range(count):
            yield kind, *synth.make_crop(rng, chosen, words, 768, 768)
    paths = sorted((data / "pages" / "held_out").glob("*.npz"))
    pages = [load_page(path) for path in random.Random(seed).sample(paths, min(count, len(paths)))]
    rng = random.Random(f"{seed}/plain")
    for _, symbols, boxes in pages:
        text = [word for word in group_words(symbols, boxes).texts if len(word) > 1]
        yield "plain text in unseen ordinary fonts", *synth.set_text(rng, ordinary, text, 768, 768)
    for page in pages:
        yield "unseen documents", *page


@dataclass(frozen=True)
class Read:
    """A labelled patch: its number, its largest word, that word's share of it and height in pixels, and whether it
    came first."""

    patch: int
    word: str
    share: float
    height: float
    right: bool


def labelled_patches(
    processor: NanoImageProcessor, image: Image.Image, symbols: str, boxes: np.ndarray
) -> tuple[Words, np.ndarray, np.ndarray]:
    """The words of a page at the size that the model sees, and which patch shows which, as `patch_words` gives it."""
    width, height = processor.target_size(*image.size)
    words = group_words(symbols, boxes * np.array([width / image.width, height / image.height] * 2, np.float32))
    return words, *patch_words(words, height // 16, width // 32)


def read_page(model: Nano, image: Image.Image, symbols: str, boxes: np.ndarray, rng: random.Random) -> list[Read]:
    """Ask every labelled patch of a page for its word among 5,000: those of the page and others."""
    labels = labelled_patches(model.processor, image, symbols, boxes)
    return read_patches(model, model.encode_pages([image])[0].vectors, *labels, rng) if len(labels[1]) else []


@torch.no_grad()
def read_patches(
    model: Nano, patches: Tensor, words: Words, pairs: np.ndarray, shares: np.ndarray, rng: random.Random
) -> list[Read]:
    """As `read_page`, from the vectors `(N, 128)` of a page's patches and what `labelled_patches` says of them."""
    texts = list(dict.fromkeys(words.texts))
    extra = [w for w in rng.sample(model.words.words, CANDIDATES) if w not in set(texts)]
    candidates = texts + extra[: max(0, CANDIDATES - len(texts))]
    vectors = model.model.embed_words(*model.words.lookup(candidates)).float()
    answers = (patches @ vectors.T).argmax(1)
    best: dict[int, tuple[float, int]] = {}
    for (patch, word), share in zip(pairs.tolist(), shares.tolist(), strict=True):
        best[patch] = max(best.get(patch, (0.0, -1)), (share, word))
    heights = words.boxes[:, 3] - words.boxes[:, 1]
    return [
        Read(patch, words.texts[word], share, float(heights[word]), candidates[answers[patch]] == words.texts[word])
        for patch, (share, word) in best.items()
    ]


def read_words(model: Nano, data: Path, fonts: Path, count: int, seed: int = 5) -> dict[str, list[Read]]:
    """What the labelled patches of `count` pages of each kind were read as."""
    rng = random.Random(seed)
    reads: dict[str, list[Read]] = {}
    for kind, image, symbols, boxes in labelled_images(data, fonts, count, seed):
        reads.setdefault(kind, []).extend(read_page(model, image, symbols, boxes, rng))
    return reads


def breakdown(reads: list[Read], vocabulary: set[str]) -> dict[str, tuple[float, int]]:
    """Share of patches whose largest word came first, and their number: all, then by what and how large they show."""
    edges = (0.0, *HEIGHTS, float("inf"))
    parts: dict[str, list[Read]] = {
        "all": reads,
        "one word": [r for r in reads if r.share >= CLEAR],
        "known words": [r for r in reads if r.word in vocabulary],
        "numbers": [r for r in reads if r.word.isdigit()],
        "other strings": [r for r in reads if r.word not in vocabulary and not r.word.isdigit()],
    }
    for low, high in itertools.pairwise(edges):
        name = f"under {high} px" if not low else f"{low} px and more" if high == edges[-1] else f"{low} to {high} px"
        parts[name] = [r for r in reads if low <= r.height < high]
    return {name: (float(np.mean([r.right for r in part])), len(part)) for name, part in parts.items() if part}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--pages", type=int, default=30, help="pages of each kind")
    arguments = parser.parse_args()
    model = anchorfold.load(arguments.model)
    assert isinstance(model, Nano)
    for kind, reads in read_words(model, arguments.data, arguments.fonts, arguments.pages).items():
        print(f"{kind}: labelled patches that name their word first among {CANDIDATES:,}")
        for part, (share, patches) in breakdown(reads, set(model.words.words)).items():
            print(f"  {part:<16} {100 * share:5.1f} %  of {patches:6,}")


if __name__ == "__main__":
    main()
