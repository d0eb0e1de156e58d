"""Stage 0: train word vectors for queries from spelling and meaning.

    python -m training.nano.tables DATA_FOLDER MINILM_FOLDER

A sentence encoder (all-MiniLM-L6-v2) provides similarity of meaning, spelling features similarity of spelling. The
tables are frozen afterwards: the page encoder learns to predict these vectors.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path

import numpy as np
import scipy.sparse
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.query import Vocabulary
from anchorfold.backbones.nano.text import SPELLING_FEATURES
from training.nano import checkpoint
from training.nano.vocabulary import load_vocabulary

SEEDS, NEIGHBOURS = 192, 3


def inverse_document_frequency(pages_with_word: int, pages: int) -> float:
    """Compute the weight of a word in queries, from 0 (on every page) to 1 (on none)."""
    return math.log(1 + pages / max(pages_with_word, 1)) / math.log(1 + pages)


def choose_words(data: Path, teacher: Path, size: int) -> tuple[list[str], list[float]]:
    """Choose the vocabulary: words of the corpus, then English words of the teacher; with their query weights."""
    words, counts, pages = load_vocabulary(data)
    weights = {w: inverse_document_frequency(c, pages) for w, c in zip(words, counts, strict=True)}
    english = [w for w in (teacher / "vocab.txt").read_text().split("\n") if w.isascii() and w.isalpha() and len(w) > 2]
    ordered = list(dict.fromkeys(words[:12000] + english + words[12000:]))[:size]
    return ordered, [weights.get(w, 0.85) for w in ordered]


def embed_with_teacher(words: list[str], teacher: Path) -> Tensor:
    """Encode single words with the teacher: centred unit vectors `(n, 384)`."""
    from sentence_transformers import SentenceTransformer

    vectors = SentenceTransformer(str(teacher), device="cpu").encode(words, batch_size=256, convert_to_tensor=True)
    return F.normalize(vectors - vectors.mean(0), dim=-1)


def build_spelling_matrix(vocabulary: Vocabulary, words: list[str]) -> scipy.sparse.csr_matrix:
    """Build the matrix `(n, features)` of spelling features with unit rows."""
    rows, columns = [], []
    for i, word in enumerate(words):
        features = vocabulary.spelling(word)
        rows += [i] * len(features)
        columns += features
    matrix = scipy.sparse.csr_matrix((np.ones(len(rows), np.float32), (rows, columns)), (len(words), SPELLING_FEATURES))
    return scipy.sparse.diags(1 / np.sqrt(np.asarray(matrix.sum(1))[:, 0])) @ matrix


class Tables(nn.Module):
    """Embedding tables of the model."""

    def __init__(self, config: NanoConfig) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.embedding_dim)
        self.spelling = nn.EmbeddingBag(config.spelling_features, config.embedding_dim, mode="mean")
        nn.init.normal_(self.words.weight, std=0.05)
        nn.init.normal_(self.spelling.weight, std=1.0)

    def forward(self, rows: Tensor, flat: Tensor, offsets: Tensor) -> Tensor:
        """Compute unit vectors `(n, d)` from the output of `Vocabulary.lookup`."""
        own = self.words(rows.clamp(min=0)) * (rows >= 0)[:, None]
        return F.normalize(self.spelling(flat, offsets) + own, dim=-1)


def train(data: Path, teacher: Path, steps: int, seed: int = 0) -> None:
    """Train the tables and write DATA_FOLDER/tables.pt."""
    config = NanoConfig()
    words, weights = choose_words(data, teacher, config.vocab_size)
    vocabulary = Vocabulary(words)
    cached = checkpoint.load(data / "meaning.pt")
    if cached is None or cached["words"] != "\n".join(words):
        cached = {"vectors": embed_with_teacher(words, teacher), "words": "\n".join(words)}
        checkpoint.save(data / "meaning.pt", **cached)
    meaning = cached["vectors"]
    letters = build_spelling_matrix(vocabulary, words)
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
        spelling = torch.from_numpy((letters[batch] @ letters[batch].T).toarray())
        target = torch.maximum(target, 0.9 * F.relu((spelling - 0.3) / 0.7)).fill_diagonal_(1)
        rows, flat, offsets = vocabulary.lookup([words[i] for i in batch])
        hidden = torch.rand(len(batch)) < 0.25  # unknown words are represented by spelling alone
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
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    arguments = parser.parse_args()
    train(arguments.data, arguments.teacher, arguments.steps)


if __name__ == "__main__":
    main()
