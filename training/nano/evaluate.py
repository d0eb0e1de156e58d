"""Measure reading accuracy: the correct word first among 5,000, in held-out fonts and documents.

    python -m training.nano.evaluate DATA_FOLDER FONT_FOLDER --model FOLDER

Retrieval and compression are measured by `anchorfold eval CORPUS --model FOLDER`.
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
from training.nano import evaluation_set, synthetic_text
from training.nano.corpus import load_page
from training.nano.labels import Words, assign_words, group_words
from training.nano.posters import draw_poster
from training.nano.scan_effects import scan
from training.nano.slides import draw_slide
from training.nano.vocabulary import load_vocabulary

CANDIDATES = 5000
SINGLE_WORD_SHARE = 0.75  # a patch shows one word if that word covers at least this share
HEIGHTS = (12, 16, 24)  # limits in pixels between small print, body text and two sizes of headings


def generate_pages(
    data: Path, fonts: Path, count: int, seed: int
) -> Iterator[tuple[str, Image.Image, str, np.ndarray]]:
    """Yield labelled pages by type: synthetic pages and typeset text in held-out fonts, and held-out documents."""
    unseen = synthetic_text.list_fonts(fonts, held_out=True)
    ordinary = tuple(path for family in synthetic_text.group_families(unseen)[0] for path in family)
    words = load_vocabulary(data)[0]
    for kind, chosen in (("unseen ordinary fonts", ordinary), ("unseen fonts of every kind", unseen)):
        rng = random.Random(f"{seed}/{kind}")
        for _ in range(count):
            yield kind, *synthetic_text.draw_page(rng, chosen, words, 768, 768)
    paths = sorted((data / "pages" / "held_out").glob("*.npz"))
    pages = [load_page(path) for path in random.Random(seed).sample(paths, min(count, len(paths)))]
    rng = random.Random(f"{seed}/plain")
    for _, symbols, boxes in pages:
        text = [word for word in group_words(symbols, boxes).texts if len(word) > 1]
        yield "plain text in unseen ordinary fonts", *synthetic_text.typeset(rng, ordinary, text, 768, 768)
    for page in pages:
        yield "unseen documents", *page


def load_evaluation_pages(
    data: Path, fonts: Path, words: Path, count: int, seed: int
) -> Iterator[tuple[str, Image.Image, str, np.ndarray]]:
    """Yield `count` held-out documents, their scans, posters and slides, with symbols and boxes `(n, 4)`."""
    paths = sorted((data / "pages" / "held_out").glob("*.npz"))
    for path in random.Random(seed).sample(paths, min(count, len(paths))):
        image, symbols, boxes = load_page(path)
        yield "documents", image, symbols, boxes
        scan_image, scan_boxes = scan(image, boxes, random.Random(f"{seed}/{path.name}"))
        yield "scans", scan_image, symbols, scan_boxes
    for kind, draw in (("posters", draw_poster), ("slides", draw_slide)):
        for image, symbols, boxes, _ in evaluation_set.generate_sheets(draw, fonts, words, count, seed):
            yield kind, image, symbols, boxes


@dataclass(frozen=True)
class PatchReading:
    """Reading of one labelled patch.

    Attributes:
        patch: Patch number.
        word: Largest word of the patch.
        share: Share of the patch that the word covers.
        height: Height of the word in pixels.
        correct: Whether the word came first.
    """

    patch: int
    word: str
    share: float
    height: float
    correct: bool


def label_patches(
    processor: NanoImageProcessor, image: Image.Image, symbols: str, boxes: np.ndarray
) -> tuple[Words, np.ndarray, np.ndarray]:
    """Return the words of a page at the input size of the model, and the output of `assign_words`."""
    width, height = processor.fit_size(*image.size)
    words = group_words(symbols, boxes * np.array([width / image.width, height / image.height] * 2, np.float32))
    return words, *assign_words(words, height // 16, width // 32)


def read_page(
    model: Nano, image: Image.Image, symbols: str, boxes: np.ndarray, rng: random.Random
) -> list[PatchReading]:
    """Classify every labelled patch of a page among 5,000 words, including those of the page."""
    labels = label_patches(model.processor, image, symbols, boxes)
    return read_patches(model, model.encode_documents([image])[0].vectors, *labels, rng) if len(labels[1]) else []


@torch.no_grad()
def read_patches(
    model: Nano, patches: Tensor, words: Words, pairs: np.ndarray, shares: np.ndarray, rng: random.Random
) -> list[PatchReading]:
    """Classify labelled patches from their vectors `(n, 128)` and the output of `label_patches`."""
    texts = list(dict.fromkeys(words.texts))
    extra = [w for w in rng.sample(model.vocabulary.words, CANDIDATES) if w not in set(texts)]
    candidates = texts + extra[: max(0, CANDIDATES - len(texts))]
    vectors = model.model.embed_words(*model.vocabulary.lookup(candidates)).float()
    answers = (patches @ vectors.T).argmax(1)
    best: dict[int, tuple[float, int]] = {}
    for (patch, word), share in zip(pairs.tolist(), shares.tolist(), strict=True):
        best[patch] = max(best.get(patch, (0.0, -1)), (share, word))
    heights = words.boxes[:, 3] - words.boxes[:, 1]
    return [
        PatchReading(
            patch, words.texts[word], share, float(heights[word]), candidates[answers[patch]] == words.texts[word]
        )
        for patch, (share, word) in best.items()
    ]


def read_words(model: Nano, data: Path, fonts: Path, count: int, seed: int = 5) -> dict[str, list[PatchReading]]:
    """Classify the labelled patches of `count` pages of each type."""
    rng = random.Random(seed)
    reads: dict[str, list[PatchReading]] = {}
    for kind, image, symbols, boxes in generate_pages(data, fonts, count, seed):
        reads.setdefault(kind, []).extend(read_page(model, image, symbols, boxes, rng))
    return reads


def summarize(reads: list[PatchReading], vocabulary: set[str]) -> dict[str, tuple[float, int]]:
    """Compute accuracy and number of patches: all, then by kind and size of the word."""
    edges = (0.0, *HEIGHTS, float("inf"))
    parts: dict[str, list[PatchReading]] = {
        "all": reads,
        "one word": [r for r in reads if r.share >= SINGLE_WORD_SHARE],
        "known words": [r for r in reads if r.word in vocabulary],
        "numbers": [r for r in reads if r.word.isdigit()],
        "other strings": [r for r in reads if r.word not in vocabulary and not r.word.isdigit()],
    }
    for low, high in itertools.pairwise(edges):
        name = f"under {high} px" if not low else f"{low} px and more" if high == edges[-1] else f"{low} to {high} px"
        parts[name] = [r for r in reads if low <= r.height < high]
    return {name: (float(np.mean([r.correct for r in part])), len(part)) for name, part in parts.items() if part}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--pages", type=int, default=30, help="pages per type")
    arguments = parser.parse_args()
    model = anchorfold.load(arguments.model)
    assert isinstance(model, Nano)
    for kind, reads in read_words(model, arguments.data, arguments.fonts, arguments.pages).items():
        print(f"{kind}: labelled patches whose word comes first among {CANDIDATES:,}")
        for part, (share, patches) in summarize(reads, set(model.vocabulary.words)).items():
            print(f"  {part:<16} {100 * share:5.1f} %  of {patches:6,}")


if __name__ == "__main__":
    main()
