"""How well nano reads: the right word first among 5,000, from pixels only, in unseen fonts and unseen documents.

    python -m training.nano.evaluate DATA_FOLDER FONT_FOLDER --model FOLDER

How well it finds and survives compression is measured by `anchorfold eval CORPUS --model FOLDER`.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
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


@torch.no_grad()
def read_words(model: Nano, data: Path, fonts: Path, count: int, seed: int = 5) -> dict[str, float]:
    """Share of labelled patches whose largest word comes first among 5,000; and of those with one word, mostly."""
    rng = random.Random(seed)
    right: dict[str, list[float]] = {}
    for kind, image, symbols, found in labelled_images(data, fonts, count, seed):
        width, height = model.processor.target_size(*image.size)
        boxes = found * np.array([width / image.width, height / image.height] * 2, np.float32)
        words = group_words(symbols, boxes)
        pairs, shares = patch_words(words, height // 16, width // 32)
        if not len(pairs):
            continue
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
        right.setdefault(kind, []).extend(float(answers[p] == w) for p, (_, w) in best.items())
        clear = [float(answers[p] == w) for p, (share, w) in best.items() if share >= CLEAR]
        right.setdefault(f"{kind}, patches of one word", []).extend(clear)
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
