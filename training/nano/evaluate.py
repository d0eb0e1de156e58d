"""How well nano reads: the right word first among 5,000, from pixels only, in unseen fonts and unseen documents.

    python -m training.nano.evaluate DATA_FOLDER FONT_FOLDER --model FOLDER

How well it finds and survives compression is measured by `anchorfold eval CORPUS --model FOLDER`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import anchorfold
from anchorfold.backbones.nano import Nano
from training.nano import synth
from training.nano.corpus import load_page
from training.nano.labels import group_words, patch_words
from training.nano.vocabulary import load_vocabulary

CANDIDATES = 5000
CLEAR = 0.75  # a patch of one word gives it at least this share; the others straddle two


def labelled_images(
    data: Path, fonts: Path, count: int, seed: int
) -> Iterator[tuple[str, Image.Image, str, np.ndarray]]:
    """Unseen fonts on invented pages (those of offices and publishers, and of every kind), and unseen documents."""
    rng = random.Random(seed)
    unseen = synth.latin_fonts(fonts, held_out=True)
    ordinary = tuple(path for family in synth.font_families(unseen)[0] for path in family)
    words = load_vocabulary(data)[0]
    pages = sorted((data / "pages" / "held_out").glob("*.npz"))
    for _ in range(count):
        for kind, chosen in (("unseen ordinary fonts", ordinary), ("unseen fonts of every kind", unseen)):
            image, symbols, boxes = synth.make_crop(rng, chosen, words, 768, 768)
            yield kind, image, symbols, boxes
        image, symbols, boxes = load_page(rng.choice(pages))
        yield "unseen documents", image, symbols, boxes


@dataclass(frozen=True)
class Read:
    """A labelled patch: its number, the share that its largest word has of it, and whether that word came first."""

    patch: int
    share: float
    right: bool


@torch.no_grad()
def read_page(model: Nano, image: Image.Image, symbols: str, found: np.ndarray, rng: random.Random) -> list[Read]:
    """Ask every labelled patch of a page for its word among 5,000: those of the page and others."""
    width, height = model.processor.target_size(*image.size)
    boxes = found * np.array([width / image.width, height / image.height] * 2, np.float32)
    words = group_words(symbols, boxes)
    pairs, shares = patch_words(words, height // 16, width // 32)
    if not len(pairs):
        return []
    (state,) = model.page_states([image])
    texts = list(dict.fromkeys(words.texts))
    extra = [w for w in rng.sample(model.words.words, CANDIDATES) if w not in set(texts)]
    candidates = texts + extra[: max(0, CANDIDATES - len(texts))]
    vectors = model.model.embed_words(*model.words.lookup(candidates)).float()
    answers = (state.embeddings @ vectors.T).argmax(1)
    number = {w: i for i, w in enumerate(candidates)}
    best: dict[int, tuple[float, int]] = {}
    for (patch, word), share in zip(pairs.tolist(), shares.tolist(), strict=True):
        best[patch] = max(best.get(patch, (0.0, -1)), (share, number[words.texts[word]]))
    return [Read(patch, share, bool(answers[patch] == word)) for patch, (share, word) in best.items()]


def read_words(model: Nano, data: Path, fonts: Path, count: int, seed: int = 5) -> dict[str, float]:
    """Share of labelled patches whose largest word comes first; and of those that show one word, mostly."""
    rng = random.Random(seed)
    right: dict[str, list[bool]] = {}
    for kind, image, symbols, boxes in labelled_images(data, fonts, count, seed):
        found = read_page(model, image, symbols, boxes, rng)
        right.setdefault(kind, []).extend(r.right for r in found)
        right.setdefault(f"{kind}, patches of one word", []).extend(r.right for r in found if r.share >= CLEAR)
    return {kind: float(np.mean(r)) for kind, r in right.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--pages", type=int, default=30, help="pages of each kind")
    arguments = parser.parse_args()
    model = anchorfold.load(arguments.model)
    assert isinstance(model, Nano)
    for kind, share in read_words(model, arguments.data, arguments.fonts, arguments.pages).items():
        print(f"{kind}: {100 * share:.1f} % of patches name their word first among {CANDIDATES}")


if __name__ == "__main__":
    main()
