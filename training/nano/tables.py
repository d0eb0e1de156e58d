"""Stage 0: word vectors for the query side, from spelling and from meaning.

    python -m training.nano.tables DATA_FOLDER MINILM_FOLDER

A sentence encoder (all-MiniLM-L6-v2) teaches which words mean alike; a pyramid of letters teaches which
are spelled alike. The tables are fixed afterwards: the page reader learns to print these vectors.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.query import WordIndex, rarity
from anchorfold.backbones.nano.text import SPELLING_FEATURES
from training.nano import checkpoint
from training.nano.vocabulary import load_vocabulary

SEEDS, NEIGHBOURS = 192, 3


def choose_words(data: Path, teacher: Path, size: int) -> tuple[list[str], list[float]]:
    """The corpus' words first, then common English from the teacher's vocabulary; with their query weights."""
    words, counts, pages = load_vocabulary(data)
    weights = {w: rarity(c, pages) for w, c in zip(words, counts, strict=True)}
    english = [w for w in (teacher / "vocab.txt").read_text().split("\n") if w.isascii() and w.isalpha() and len(w) > 2]
    ordered = list(dict.fromkeys(words[:12000] + english + words[12000:]))[:size]
    return ordered, [weights.get(w, 0.85) for w in ordered]


def teach_meaning(words: list[str], teacher: Path) -> Tensor:
    """`(n, 384)` unit vectors of single words, with what all words have in common taken out."""
    from sentence_transformers import SentenceTransformer

    vectors = SentenceTransformer(str(teacher), device="cpu").encode(words, batch_size=256, convert_to_tensor=True)
    return F.normalize(vectors - vectors.mean(0), dim=-1)


def spelling(index: WordIndex, words: list[str]) -> scipy.sparse.csr_matrix:
    """`(n, features)` rows scaled so that a product gives the cosine of two words' features."""
    rows, columns = [], []
    for i, word in enumerate(words):
        grams = index.spelling(word)
        rows += [i] * len(grams)
        columns += grams
    matrix = scipy.sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), (len(words), SPELLING_FEATURES))
    return scipy.sparse.diags(1 / np.sqrt(np.asarray(matrix.sum(1))[:, 0])) @ matrix


class Tables(nn.Module):
    """The same two tables as in the model."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.spelling = nn.EmbeddingBag(config.spelling_features, config.embedding_dim, mode="mean")
        nn.init.normal_(self.words.weight, std=0.05)
        nn.init.normal_(self.spelling.weight, std=1.0)

    def forward(self, rows: Tensor, flat: Tensor, offsets: Tensor) -> Tensor:
        own = self.words(rows.clamp(min=0)) * (rows >= 0)[:, None]
        return F.normalize(self.spelling(flat, offsets) + own, dim=-1)


def train(data: Path, teacher: Path, steps: int, seed: int = 0) -> None:
    config = NanoConfig()
    words, weights = choose_words(data, teacher, config.vocab_size)
    index = WordIndex(words)
    cached = checkpoint.load(data / "meaning.pt")
    if cached is None or cached["words"] != "\n".join(words):
        cached = {"vectors": teach_meaning(words, teacher), "words": "\n".join(words)}
        checkpoint.save(data / "meaning.pt", **cached)
    meaning = cached["vectors"]
    letters = spelling(index, words)
    near = torch.cat([(chunk @ meaning.T).topk(12).indices[:, 1:] for chunk in meaning.split(1024)])
    torch.manual_seed(seed)
    rng = random.Random(seed)
    tables = Tables(config)
    optimiser = torch.optim.Adam(tables.parameters(), 0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 0.02, steps)
    for step in range(steps):
        seeds = rng.sample(range(len(words)), SEEDS)
        batch = list(dict.fromkeys(seeds + [int(near[s, rng.randrange(11)]) for s in seeds for _ in range(NEIGHBOURS)]))
        target = 0.5 * F.relu((meaning[batch] @ meaning[batch].T - 0.35) / 0.65)
        alike = torch.from_numpy((letters[batch] @ letters[batch].T).toarray())
        target = torch.maximum(target, 0.9 * F.relu((alike - 0.3) / 0.7)).fill_diagonal_(1)
        rows, flat, offsets = index.lookup([words[i] for i in batch])
        hidden = torch.rand(len(batch)) < 0.25  # unknown words must come out right by spelling alone
        vectors = tables(torch.where(hidden, -1, rows), flat, offsets)
        error = (vectors @ vectors.T - target).square()
        loss = (error * (1 + 9 * (target > 0.05))).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if (step + 1) % 200 == 0:
            print(f"step {step + 1}  loss {loss.item():.4f}", flush=True)
    checkpoint.save(
        data / "tables.pt", model=tables.state_dict(), weights=torch.tensor(weights), words="\n".join(words)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    arguments = parser.parse_args()
    train(arguments.data, arguments.teacher, arguments.steps)


if __name__ == "__main__":
    main()
