"""Null dimensions: reserved by a rotation of the embedding space, and untouched by training."""

import copy

import pytest
import torch
import torch.nn.functional as F

from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.model import NanoModel
from anchorfold.backbones.nano.query import Vocabulary
from training.nano.null_dimensions import count_null_dimensions, reserve_null_dimensions

WORDS = [first + second for first in ("re", "in", "con", "de", "per") for second in ("venue", "gion", "tract", "port")]


@pytest.fixture
def model():
    torch.manual_seed(0)
    return NanoModel(NanoConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=len(WORDS)))


def embed_texts(model, words):
    with torch.no_grad():
        return model.embed_words(*Vocabulary(WORDS).lookup(words))


def test_null_dimensions_are_zero_in_word_vectors(model):
    """For known and unknown words; similarities of patches and words do not change."""
    before = copy.deepcopy(model)
    reserve_null_dimensions(model, Vocabulary(WORDS))
    null = count_null_dimensions(model)
    for words in (WORDS, ["xylophone", "1984"]):
        assert not embed_texts(model, words)[:, -null:].any()
    # Few words leave many dimensions unused, so clearing the least used ones changes nothing.
    old, new = embed_texts(before, WORDS), embed_texts(model, WORDS)
    torch.testing.assert_close(new @ new.T, old @ old.T, atol=1e-4, rtol=0)
    states = torch.randn(50, 32)
    with torch.no_grad():
        old_states, new_states = before.projection(states), model.projection(states)
    assert not new_states[:, -null:].any()
    torch.testing.assert_close(new_states @ new.T, old_states @ old.T, atol=1e-4, rtol=0)


def test_reserving_twice_changes_nothing(model):
    reserve_null_dimensions(model, Vocabulary(WORDS))
    copied = copy.deepcopy(model)
    reserve_null_dimensions(copied, Vocabulary(WORDS))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), copied.parameters(), strict=True))


def test_training_keeps_null_dimensions_zero(model):
    """No gradient reaches them while patches learn to predict words."""
    reserve_null_dimensions(model, Vocabulary(WORDS))
    words = embed_texts(model, WORDS)
    optimiser = torch.optim.AdamW(model.projection.parameters(), 1e-2)
    for _ in range(5):
        vectors = F.normalize(model.projection(torch.randn(20, 32)), dim=-1)
        F.cross_entropy(vectors @ words.T / 0.06, torch.arange(20)).backward()
        optimiser.step()
        optimiser.zero_grad()
    null = count_null_dimensions(model)
    assert not model.projection.weight[-null:].any()
    assert not model.projection.bias[-null:].any()
