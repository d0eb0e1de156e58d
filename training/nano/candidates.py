"""The words that a batch is asked about: printed ones, and absent ones that are hard to tell from them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from anchorfold.backbones.nano.model import NanoModel
from anchorfold.backbones.nano.query import WordIndex
from anchorfold.backbones.nano.text import LETTERS
from training.nano import losses
from training.nano.examples import Example

RANDOM, FREQUENT = 2000, 300  # absent words of a batch: any, and common on pages
ALTERED = 300  # absent words of a batch that differ from printed ones in a letter, or are a piece of one
PROBES, NEIGHBOURS = 200, 6  # printed words of a batch whose nearest absent ones are asked about too


@dataclass(frozen=True)
class Candidates:
    """Words of a batch and their unit `vectors (W, 128)`; the first `printed` of them stand on one of its pieces."""

    words: list[str]
    vectors: Tensor
    printed: int

    @cached_property
    def number(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def labels(self, batch: list[Example]) -> tuple[Tensor, Tensor]:
        """`(k, 2)` patch (counted over all pieces) and word numbers, `(k,)` shares."""
        pairs, shares, start = [], [], 0
        for e in batch:
            local = torch.tensor([self.number[w] for w in e.words], dtype=torch.long)
            if len(e.pairs):
                pairs.append(torch.stack((e.pairs[:, 0] + start, local[e.pairs[:, 1]]), 1))
                shares.append(e.shares)
            start += len(e.kept)
        return torch.cat(pairs), torch.cat(shares)

    def on(self, example: Example) -> Tensor:
        """`(W,)` which of the words are printed on a piece."""
        here = torch.zeros(len(self.words), dtype=torch.bool)
        here[[self.number[w] for w in example.words]] = True
        return here


class WordPool:
    """Draws candidates; finds each word's nearest ones, alike in spelling or in meaning."""

    def __init__(self, model: NanoModel, index: WordIndex) -> None:
        self.model, self.index = model, index
        with torch.no_grad():
            self.vectors = model.embed_words(*index.lookup(index.words))
        self.frequent = [w for w in index.words[: 2 * FREQUENT] if len(w) > 3][:FREQUENT]

    @torch.no_grad()
    def draw(self, batch: list[Example], rng: random.Random) -> Candidates:
        """All words of the batch, and absent ones."""
        texts = list(dict.fromkeys(w for e in batch for w in e.words))
        words = self.index.words
        probes = self.model.embed_words(*self.index.lookup(rng.sample(texts, min(PROBES, len(texts)))))
        near = (probes @ self.vectors.T).topk(min(NEIGHBOURS, len(words))).indices.unique().tolist()
        changed = [altered(w, rng) for w in rng.sample(texts, min(ALTERED, len(texts))) if len(w) > 2]
        absent = rng.sample(words, min(RANDOM, len(words))) + [words[i] for i in near] + self.frequent + changed
        drawn = list(dict.fromkeys(texts + absent))
        return Candidates(drawn, self.model.embed_words(*self.index.lookup(drawn)), len(texts))


def altered(word: str, rng: random.Random) -> str:
    """A word of three letters or more, misread: one letter another, left out or in the wrong place; or a half of it."""
    i = rng.randrange(len(word) - 1)
    letters = LETTERS[26:] if word.isdigit() else LETTERS[:26]
    ways = (
        word[:i] + rng.choice(letters) + word[i + 1 :],
        word[: i + 1] + rng.choice(letters) + word[i + 2 :],
        word[:i] + word[i + 1 :],
        word[:i] + word[i + 1] + word[i] + word[i + 2 :],
        word[: (len(word) + 1) // 2],
        word[len(word) // 2 :],
    )
    return rng.choice(ways)


def word_losses(vectors: list[Tensor], batch: list[Example], candidates: Candidates) -> tuple[dict[str, Tensor], float]:
    """Reading, finding and not pretending, for the patches `(N, 128)` of each piece; and the share read right."""
    pair, share = candidates.labels(batch)
    everything = torch.cat(vectors)
    read, right = losses.reading_loss(everything, candidates.vectors, pair, share)
    find = losses.finding_loss(everything, candidates.vectors[: candidates.printed], pair, share)
    pretence = [
        losses.pretence_loss(v, candidates.vectors, candidates.on(e)) for v, e in zip(vectors, batch, strict=True)
    ]
    paper = torch.cat([v[e.paper] for v, e in zip(vectors, batch, strict=True)])
    parts = {
        "read": read,
        "find": find,
        "pretence": torch.stack(pretence).mean(),
        "paper": losses.paper_loss(paper, candidates.vectors),
    }
    return parts, right.item()


def folding_losses(
    whole: list[Tensor],
    folded: list[Tensor],
    batch: list[Example],
    values: list[dict[str, float]],
    candidates: Candidates,
) -> tuple[Tensor, Tensor]:
    """Which page holds a word, by the `folded (m, 128)` pages, and what folding lost of the `whole (N, 128)`.

    `values` are the words of each piece and how likely a query asks for each.
    """
    texts = candidates.words[: candidates.printed]
    sets = [set(e.words) for e in batch]
    present = torch.tensor([[w in s for s in sets] for w in texts])
    value = torch.tensor([[v.get(w, 0.0) for v in values] for w in texts])
    words = candidates.vectors[: candidates.printed]
    return (
        losses.word_page_loss(folded, words, present, value),
        losses.retention_loss(whole, folded, words, present, value),
    )
