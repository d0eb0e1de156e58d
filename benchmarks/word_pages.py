"""Synthetic pages that resemble those of nano: consecutive words of real text, as nano encodes them.

A page vector is the sum of a word vector and a residual, like that of a compressed vector of nano to its nearest word.
The norm, direction and correlation of the residuals of a word are sampled from the pages of a run with stored
vectors: the residuals of a word are similar to each other.
"""

from __future__ import annotations

import gzip
import re
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from anchorfold import Index
from anchorfold.backbones.nano.query import NanoQueryEncoder

TEXTS = ("usr/share/doc/**/*", "usr/share/man/man*/*", "var/lib/dpkg/status", "var/lib/apt/lists/*Packages")
LOW, HIGH, WORDS, LINES = 40, 80, 20_000, 40
METHOD = "anchorfold@0.05"
FEWEST, OFTEN_ENOUGH = 4, 200  # vectors per word, to estimate their similarity


def real_lines(most: int = 2_000_000) -> list[str]:
    """Return lower-case lines of text files on this system."""
    lines: list[str] = []
    for pattern in TEXTS:
        for path in sorted(Path("/").glob(pattern)):
            if len(lines) >= most or not path.is_file():
                continue
            try:
                data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
                text = data[:5_000_000].decode()
            except (OSError, UnicodeDecodeError, EOFError, gzip.BadGzipFile):
                continue
            lines += [" ".join(re.findall(r"[a-z0-9]+", line.lower())) for line in text.splitlines() if len(line) > 20]
    return lines


def run_vectors(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors `(V, 128)` and page lengths of an index, or of `anchorfold eval CORPUS --keep-vectors -o RUN`."""
    if (run / "index.db").exists():
        pages = Index.open(run).store.export_pages(lambda index: [page.vectors for page in index.pages()])
        return np.concatenate(pages), np.array([len(page) for page in pages])
    (folder,) = {path.parent for path in run.rglob(f"{METHOD}.vectors")}
    lengths = np.fromfile(folder / f"{METHOD}.lengths", np.int32)
    vectors = np.fromfile(folder / f"{METHOD}.vectors", np.float16).reshape(-1, 128)
    return vectors.astype(np.float32)[: lengths.sum()], lengths


class WordPages:
    """Samples pages and queries.

    Args:
        run: run of nano on real pages with stored vectors, or an index.
        seed: random seed.
    """

    def __init__(self, run: Path, seed: int = 0) -> None:
        known = NanoQueryEncoder().vocabulary.words[:WORDS]
        self.vectors = np.concatenate(NanoQueryEncoder().encode_queries(known))
        self.units = self.vectors / np.linalg.norm(self.vectors, axis=1, keepdims=True)
        self.rng = np.random.default_rng(seed)
        self.texts = _texts(real_lines(), {word: number for number, word in enumerate(known)}, self.rng)
        seen, _ = run_vectors(run)
        parts = np.array_split(seen, -(-len(seen) // 500))
        nearest = np.concatenate([(part @ self.units.T).argmax(1) for part in parts])
        cosines = (seen * self.units[nearest]).sum(1)
        rests = seen - cosines[:, None] * self.units[nearest]
        self.rests = rests / np.maximum(np.linalg.norm(rests, axis=1, keepdims=True), 1e-9)
        members, likeness = likeness_of_rests(self.rests, nearest)
        self.seen = np.stack([cosines[members], likeness], axis=1)
        self.usual = self.rests[self.rng.integers(0, len(self.rests), len(known))]  # per word

    def draw(self, count: int) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
        """Return vectors `(V, 128)`, page lengths, and the word numbers of each page."""
        pages: list[np.ndarray] = []
        while len(pages) < count:
            words = list(dict.fromkeys(next(self.texts)))[: int(self.rng.integers(LOW, HIGH + 1))]
            if len(words) >= LOW:
                pages.append(np.array(words))
        words_of_all = np.concatenate(pages)
        cosine, likeness = self.seen[self.rng.integers(0, len(self.seen), len(words_of_all))].T[:, :, None]
        chance = self.rests[self.rng.integers(0, len(self.rests), len(words_of_all))]
        rest = likeness * self.usual[words_of_all] + np.sqrt(1 - likeness**2) * chance
        vectors = cosine * self.units[words_of_all] + np.sqrt(1 - cosine**2) * rest
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        return vectors, np.array([len(page) for page in pages]), pages

    def query(self, words: np.ndarray) -> np.ndarray:
        """Return the vectors of three to eight words of a page, weighted as by nano."""
        return self.vectors[self.rng.choice(words, min(len(words), int(self.rng.integers(3, 9))), replace=False)]


def likeness_of_rests(rests: np.ndarray, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the vectors of frequent words and the similarity `(n,)` of each residual to the typical one of its word.

    The expected cosine of two residuals, each typical plus noise, is the product of their similarities.
    """
    members, likeness = [], []
    for word in np.unique(words):
        same = np.flatnonzero(words == word)[:OFTEN_ENOUGH]
        if len(same) < FEWEST:
            continue
        products = rests[same] @ rests[same].T
        others = (products.sum(1) - 1) / (len(same) - 1)
        members.append(same)
        likeness.append(others / np.sqrt(max(float(others.mean()), 1e-4)))
    return np.concatenate(members), np.concatenate(likeness).clip(0, 0.99)


def _texts(lines: list[str], words: dict[str, int], rng: np.random.Generator) -> Iterator[list[int]]:
    """Return an iterator over the numbers of known words of consecutive lines from a random position, without end."""
    numbers, ends = array("i"), array("q", [0])
    for line in lines:
        numbers.extend(words[word] for word in line.split() if word in words)
        ends.append(len(numbers))

    def draws() -> Iterator[list[int]]:
        while True:
            at = int(rng.integers(len(ends) - 1))
            yield numbers[ends[at] : ends[min(at + LINES, len(ends) - 1)]].tolist()

    return draws()
