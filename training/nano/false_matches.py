"""How often a word that is not on a page finds a patch above the score of a word that is.

    python -m training.nano.false_matches DATA_FOLDER FONT_FOLDER --model FOLDER --pages 40

Kinds of pages: unseen documents, the same as scans, posters and slides in unseen fonts and words. Absent words are hard
ones, half of them the nearest in spelling to printed words, half the words that pages (and so queries) hold most often.
The rate is the share of all pairs (absent word, printed word) of a page that the absent one wins; for paper, ornament
and text, the same when the absent word may only match patches of that sort.
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
from training.nano import measuring_set
from training.nano.evaluate import labelled_patches
from training.nano.kinds import labelled_pages
from training.nano.labels import Words

ABSENT = 200
FREQUENT = 600  # of the vocabulary's head, short words left out: what queries ask for most
SORTS = ("any patch", "paper", "ornament", "text")


def absent_words(present: list[str], model: Nano, vectors: Tensor, rng: random.Random) -> list[str]:
    """Words that are not printed: near to printed ones (`vectors (V, 128)` of all known words), or frequent."""
    vocabulary, printed = model.words.words, set(present)
    probes = rng.sample(present, min(ABSENT // 2, len(present)))
    near = (vectors_of(model, probes) @ vectors.T).topk(12).indices.tolist()
    hard = [next((vocabulary[i] for i in row if vocabulary[i] not in printed), "") for row in near]
    frequent = [w for w in vocabulary[:FREQUENT] if len(w) > 3 and w not in printed]
    return list(dict.fromkeys([w for w in hard if w] + rng.sample(frequent, min(ABSENT // 2, len(frequent)))))


def vectors_of(model: Nano, words: list[str]) -> Tensor:
    """`(n, 128)` unit vectors of words."""
    return model.model.embed_words(*model.words.lookup(words)).float()


def sorts_of_patches(pixels: np.ndarray, labelled: np.ndarray) -> np.ndarray:
    """`(rows x columns,)` 1 for paper (nothing is seen), 2 for ornament, 3 for text; `labelled` patches show words."""
    rows, columns = pixels.shape[0] // 16, pixels.shape[1] // 32
    cells = pixels.reshape(rows, 16, columns, 32).transpose(0, 2, 1, 3).reshape(rows * columns, -1)
    sorts = np.where(np.ptp(np.quantile(cells, [0.02, 0.98], axis=1), axis=0) > 40 / 127.5, 2, 1)
    sorts[labelled] = 3
    return sorts


def page_rates(
    model: Nano, image: Image.Image, symbols: str, boxes: np.ndarray, vectors: Tensor, rng: random.Random
) -> list[float] | None:
    """A rate for each of SORTS, or None for a page with too few words; `vectors (V, 128)` of all known words."""
    words, pairs, _ = labelled_patches(model.processor, image, symbols, boxes)
    (encoded,) = model.encode_pages([image])
    return patch_rates(model, encoded.vectors, image, words, pairs, vectors, rng)


@torch.no_grad()
def patch_rates(
    model: Nano,
    patches: Tensor,
    image: Image.Image,
    words: Words,
    pairs: np.ndarray,
    vectors: Tensor,
    rng: random.Random,
) -> list[float] | None:
    """As `page_rates`, from the vectors `(N, 128)` of the image's patches, its words and which patch shows which."""
    present = [w for w in dict.fromkeys(words.texts) if len(w) > 3]
    if len(present) < 5:
        return None
    pixels = model.processor.preprocess([image])["pixel_values"][0, 0].numpy()
    sorts = torch.from_numpy(sorts_of_patches(pixels, np.unique(pairs[:, 0])))
    right = (vectors_of(model, present) @ patches.T).amax(1)
    wrong = vectors_of(model, absent_words(present, model, vectors, rng)) @ patches.T
    rates = []
    for sort in range(len(SORTS)):
        chosen = wrong if sort == 0 else wrong[:, sorts == sort]
        best = chosen.amax(1) if chosen.shape[1] else torch.full((len(wrong),), -1.0)
        rates.append(float((best[:, None] > right[None]).float().mean()))
    return rates


def measure(
    model: Nano, pages: Iterator[tuple[str, Image.Image, str, np.ndarray]], seed: int = 5
) -> dict[str, np.ndarray]:
    """The mean rates of each kind of page."""
    rng = random.Random(seed)
    with torch.no_grad():
        vectors = vectors_of(model, model.words.words)
    rates: dict[str, list[list[float]]] = {}
    for kind, image, symbols, boxes in pages:
        if (page := page_rates(model, image, symbols, boxes, vectors, rng)) is not None:
            rates.setdefault(kind, []).append(page)
    return {kind: np.mean(values, 0) for kind, values in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--model", default="nano")
    parser.add_argument("--pages", type=int, default=40, help="pages of each kind")
    parser.add_argument("--words", type=Path, default=measuring_set.WORD_LIST)
    parser.add_argument("--seed", type=int, default=5)
    arguments = parser.parse_args()
    model = anchorfold.load(arguments.model)
    assert isinstance(model, Nano)
    pages = labelled_pages(arguments.data, arguments.fonts, arguments.words, arguments.pages, arguments.seed)
    print("| kind of page | " + " | ".join(SORTS) + " |\n|---|" + "---:|" * len(SORTS))
    for kind, rates in measure(model, pages, arguments.seed).items():
        print(f"| {kind} | " + " | ".join(f"{100 * r:.1f} %" for r in rates) + " |", flush=True)


if __name__ == "__main__":
    main()
