"""Candidate words of a batch: its printed words and hard negatives."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from anchorfold.backbones.nano.model import NanoModel
from anchorfold.backbones.nano.query import Vocabulary
from anchorfold.backbones.nano.text import LETTERS
from training.nano import losses
from training.nano.examples import Example

RANDOM, FREQUENT = 2000, 300  # random and frequent absent words per batch
MISSPELLED = 300  # misspelled printed words per batch
PROBES, NEIGHBOURS = 200, 6  # printed words per batch whose nearest words are added, and how many each


@dataclass(frozen=True)
class Candidates:
    """Words of a batch and their unit `vectors (w, 128)`; the first `printed` words occur in one of its crops."""

    words: list[str]
    vectors: Tensor
    printed: int

    @cached_property
    def index(self) -> dict[str, int]:
        """Positions of the words."""
        return {word: i for i, word in enumerate(self.words)}

    def labels(self, batch: list[Example]) -> tuple[Tensor, Tensor]:
        """Return `(k, 2)` pairs of patch (counted over all crops) and word, and `(k,)` their shares."""
        pairs, shares, start = [], [], 0
        for e in batch:
            local = torch.tensor([self.index[w] for w in e.words], dtype=torch.long)
            if len(e.pairs):
                pairs.append(torch.stack((e.pairs[:, 0] + start, local[e.pairs[:, 1]]), 1))
                shares.append(e.shares)
            start += len(e.patches)
        return torch.cat(pairs), torch.cat(shares)

    def mark_present(self, example: Example) -> Tensor:
        """Return a mask `(w,)` of the words that occur in a crop."""
        present = torch.zeros(len(self.words), dtype=torch.bool)
        present[[self.index[w] for w in example.words]] = True
        return present


class CandidateSampler:
    """Samples candidates, including words that are similar in spelling or meaning."""

    def __init__(self, model: NanoModel, vocabulary: Vocabulary) -> None:
        self.model, self.vocabulary = model, vocabulary
        with torch.no_grad():
            self.vectors = model.embed_words(*vocabulary.lookup(vocabulary.words))
        self.frequent = [w for w in vocabulary.words[: 2 * FREQUENT] if len(w) > 3][:FREQUENT]

    @torch.no_grad()
    def sample(self, batch: list[Example], rng: random.Random) -> Candidates:
        """Sample the words of the batch and absent words."""
        texts = list(dict.fromkeys(w for e in batch for w in e.words))
        words = self.vocabulary.words
        probes = self.model.embed_words(*self.vocabulary.lookup(rng.sample(texts, min(PROBES, len(texts)))))
        near = (probes @ self.vectors.T).topk(min(NEIGHBOURS, len(words))).indices.unique().tolist()
        misspelled = [misspell(w, rng) for w in rng.sample(texts, min(MISSPELLED, len(texts))) if len(w) > 2]
        absent = rng.sample(words, min(RANDOM, len(words))) + [words[i] for i in near] + self.frequent + misspelled
        candidates = list(dict.fromkeys(texts + absent))
        return Candidates(candidates, self.model.embed_words(*self.vocabulary.lookup(candidates)), len(texts))


def misspell(word: str, rng: random.Random) -> str:
    """Replace, drop or swap a letter of a word of at least three letters, or return one half of it."""
    i = rng.randrange(len(word) - 1)
    letters = LETTERS[26:] if word.isdigit() else LETTERS[:26]
    variants = (
        word[:i] + rng.choice(letters) + word[i + 1 :],
        word[: i + 1] + rng.choice(letters) + word[i + 2 :],
        word[:i] + word[i + 1 :],
        word[:i] + word[i + 1] + word[i] + word[i + 2 :],
        word[: (len(word) + 1) // 2],
        word[len(word) // 2 :],
    )
    return rng.choice(variants)


def compute_word_losses(
    vectors: list[Tensor], batch: list[Example], candidates: Candidates, squared: bool = True
) -> tuple[dict[str, Tensor], float]:
    """Compute the word losses for the patch vectors `(n, 128)` of each crop, and the reading accuracy.

    With `squared`, patches prefer the larger of two words, as in `losses.reading_loss`.
    """
    pair, share = candidates.labels(batch)
    everything = torch.cat(vectors)
    reading, accuracy = losses.reading_loss(everything, candidates.vectors, pair, share, squared)
    localization = losses.localization_loss(everything, candidates.vectors[: candidates.printed], pair, share)
    absent = [
        losses.absent_word_loss(v, candidates.vectors, candidates.mark_present(e))
        for v, e in zip(vectors, batch, strict=True)
    ]
    background = torch.cat([v[e.background] for v, e in zip(vectors, batch, strict=True)])
    parts = {
        "reading": reading,
        "localization": localization,
        "absent": torch.stack(absent).mean(),
        "background": losses.background_loss(background, candidates.vectors),
    }
    return parts, accuracy.item()


def compute_folding_losses(
    full: list[Tensor],
    folded: list[Tensor],
    batch: list[Example],
    values: list[dict[str, float]],
    candidates: Candidates,
) -> tuple[Tensor, Tensor]:
    """Compute the page loss and the retention loss of compressed pages.

    Args:
        full: `(n, 128)` vectors of each page.
        folded: `(m, 128)` vectors of each compressed page.
        batch: Labelled crops.
        values: Words of each crop and how likely a query contains each.
        candidates: Candidate words of the batch.
    """
    texts = candidates.words[: candidates.printed]
    sets = [set(e.words) for e in batch]
    present = torch.tensor([[w in s for s in sets] for w in texts])
    value = torch.tensor([[v.get(w, 0.0) for v in values] for w in texts])
    words = candidates.vectors[: candidates.printed]
    return (
        losses.word_page_loss(folded, words, present, value),
        losses.retention_loss(full, folded, words, present, value),
    )
