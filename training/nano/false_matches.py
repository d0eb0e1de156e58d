"""Measure false matches: how often an absent word scores higher on a page than a printed one.

    python -m training.nano.false_matches DATA_FOLDER FONT_FOLDER --model FOLDER --pages 40

Pages are held-out documents, their scans, and posters and slides in held-out fonts and words. Half of the absent words
are those nearest to printed words, half are the most frequent ones of the vocabulary. The rate is the share of pairs
(absent word, printed word) of a page in which the absent word scores higher: over all patches, and with the absent word
restricted to background, graphics or text.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

import anchorfold
from anchorfold.backbones.nano.retriever import Nano
from training.nano import evaluation_set
from training.nano.evaluate import label_patches, load_evaluation_pages
from training.nano.labels import Words

ABSENT = 200
FREQUENT = 600  # most frequent words of the vocabulary that are considered
PATCH_TYPES = ("any patch", "background", "graphics", "text")


def sample_absent_words(present: list[str], model: Nano, vectors: Tensor, rng: random.Random) -> list[str]:
    """Sample absent words: nearest to printed ones (`vectors (v, 128)` of all known words), or frequent."""
    vocabulary, printed = model.vocabulary.words, set(present)
    probes = rng.sample(present, min(ABSENT // 2, len(present)))
    near = (embed_texts(model, probes) @ vectors.T).topk(12).indices.tolist()
    hard = [next((vocabulary[i] for i in row if vocabulary[i] not in printed), "") for row in near]
    frequent = [w for w in vocabulary[:FREQUENT] if len(w) > 3 and w not in printed]
    return list(dict.fromkeys([w for w in hard if w] + rng.sample(frequent, min(ABSENT // 2, len(frequent)))))


def embed_texts(model: Nano, words: list[str]) -> Tensor:
    """Compute unit vectors `(n, 128)` of words."""
    return model.model.embed_words(*model.vocabulary.lookup(words)).float()


def classify_patches(pixels: np.ndarray, labelled: np.ndarray) -> np.ndarray:
    """Classify patches as background (1), graphics (2) or text (3, the `labelled` ones): `(rows * columns,)`."""
    rows, columns = pixels.shape[0] // 16, pixels.shape[1] // 32
    cells = pixels.reshape(rows, 16, columns, 32).transpose(0, 2, 1, 3).reshape(rows * columns, -1)
    types = np.where(np.ptp(np.quantile(cells, [0.02, 0.98], axis=1), axis=0) > 40 / 127.5, 2, 1)
    types[labelled] = 3
    return types


def measure_page(
    model: Nano, image: Image.Image, symbols: str, boxes: np.ndarray, vectors: Tensor, rng: random.Random
) -> list[float] | None:
    """Measure a page: one rate per patch type, or None if it has too few words; `vectors (v, 128)` of known words."""
    words, pairs, _ = label_patches(model.processor, image, symbols, boxes)
    (encoded,) = model.encode_documents([image])
    return measure_patches(model, encoded.vectors, image, words, pairs, vectors, rng)


@torch.no_grad()
def measure_patches(
    model: Nano,
    patches: Tensor,
    image: Image.Image,
    words: Words,
    pairs: np.ndarray,
    vectors: Tensor,
    rng: random.Random,
) -> list[float] | None:
    """Measure a page from its patch vectors `(n, 128)`, its words, and pairs of patches and words."""
    present = [w for w in dict.fromkeys(words.texts) if len(w) > 3]
    if len(present) < 5:
        return None
    pixels = model.processor.preprocess([image])["pixel_values"][0, 0].numpy()
    types = torch.from_numpy(classify_patches(pixels, np.unique(pairs[:, 0])))
    present_scores = (embed_texts(model, present) @ patches.T).amax(1)
    absent_scores = embed_texts(model, sample_absent_words(present, model, vectors, rng)) @ patches.T
    rates = []
    for patch_type in range(len(PATCH_TYPES)):
        scores = absent_scores if patch_type == 0 else absent_scores[:, types == patch_type]
        best = scores.amax(1) if scores.shape[1] else torch.full((len(absent_scores),), -1.0)
        rates.append(float((best[:, None] > present_scores[None]).float().mean()))
    return rates


def measure(
    model: Nano, pages: Iterator[tuple[str, Image.Image, str, np.ndarray]], seed: int = 5
) -> dict[str, np.ndarray]:
    """Compute the mean rates per type of page."""
    rng = random.Random(seed)
    with torch.no_grad():
        vectors = embed_texts(model, model.vocabulary.words)
    rates: dict[str, list[list[float]]] = {}
    for kind, image, symbols, boxes in pages:
        if (page := measure_page(model, image, symbols, boxes, vectors, rng)) is not None:
            rates.setdefault(kind, []).append(page)
    return {kind: np.mean(values, 0) for kind, values in rates.items()}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--pages", type=int, default=40, help="pages per type")
    parser.add_argument("--words", type=Path, default=evaluation_set.WORD_LIST)
    parser.add_argument("--seed", type=int, default=5)
    arguments = parser.parse_args()
    model = anchorfold.load(arguments.model)
    assert isinstance(model, Nano)
    pages = load_evaluation_pages(arguments.data, arguments.fonts, arguments.words, arguments.pages, arguments.seed)
    print("| pages | " + " | ".join(PATCH_TYPES) + " |\n|---|" + "---:|" * len(PATCH_TYPES))
    for kind, rates in measure(model, pages, arguments.seed).items():
        print(f"| {kind} | " + " | ".join(f"{100 * r:.1f} %" for r in rates) + " |", flush=True)


if __name__ == "__main__":
    main()
