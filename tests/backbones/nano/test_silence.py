"""Dimensions in which no word lies: made by turning the space, and left alone afterwards."""

import copy

import pytest
import torch
import torch.nn.functional as F

from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.model import NanoModel
from anchorfold.backbones.nano.query import WordIndex
from training.nano.silence import make_room, silent_dimensions

WORDS = [first + second for first in ("re", "in", "con", "de", "per") for second in ("venue", "gion", "tract", "port")]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return NanoModel(NanoConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=len(WORDS)))


def vectors_of(model, words):
    with torch.no_grad():
        return model.embed_words(*WordIndex(WORDS).lookup(words))


def test_no_word_lies_in_the_last_dimensions(model):
    """Neither known words nor unknown ones; a reader that named a word still does."""
    before = copy.deepcopy(model)
    make_room(model, WordIndex(WORDS))
    silent = silent_dimensions(model)
    for words in (WORDS, ["xylophone", "1984"]):
        assert not vectors_of(model, words)[:, -silent:].any()
    # Few words leave many dimensions unused: clearing the least used ones costs nothing, and turning changes nothing.
    old, new = vectors_of(before, WORDS), vectors_of(model, WORDS)
    torch.testing.assert_close(new @ new.T, old @ old.T, atol=1e-4, rtol=0)
    states = torch.randn(50, 32)
    with torch.no_grad():
        seen, now = before.projection(states), model.projection(states)
    assert not now[:, -silent:].any()
    torch.testing.assert_close(now @ new.T, seen @ old.T, atol=1e-4, rtol=0)


def test_room_is_made_once(model):
    make_room(model, WordIndex(WORDS))
    again = copy.deepcopy(model)
    make_room(again, WordIndex(WORDS))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_training_leaves_the_room_empty(model):
    """Nothing pulls a patch into the silent dimensions while it learns to name words."""
    make_room(model, WordIndex(WORDS))
    words = vectors_of(model, WORDS)
    optimiser = torch.optim.AdamW(model.projection.parameters(), 1e-2)
    for _ in range(5):
        vectors = F.normalize(model.projection(torch.randn(20, 32)), dim=-1)
        F.cross_entropy(vectors @ words.T / 0.06, torch.arange(20)).backward()
        optimiser.step()
        optimiser.zero_grad()
    silent = silent_dimensions(model)
    assert not model.projection.weight[-silent:].any()
    assert not model.projection.bias[-silent:].any()
