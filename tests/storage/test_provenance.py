import numpy as np
import pytest
import torch

from anchorfold.page import EncodedPage, PatchGrid
from anchorfold.storage.provenance import pack, unpack


def page(tokens=1600, vectors=80, dropped=0.1, seed=0, grid=None):
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randint(0, vectors, (tokens,), generator=generator)
    groups[torch.rand(tokens, generator=generator) < dropped] = -1
    anchors = torch.randperm(tokens, generator=generator)[:vectors].sort().values
    groups[anchors] = torch.arange(vectors)
    alpha = torch.rand(tokens, generator=generator) ** 3
    alpha[groups < 0] = 0
    sums = torch.zeros(vectors).index_add_(0, groups.clamp(min=0), alpha)
    weights = torch.where(groups >= 0, alpha / sums[groups.clamp(min=0)], 0)
    return EncodedPage(torch.zeros(vectors, 4), anchors, groups, weights, grid)


@pytest.mark.parametrize(("tokens", "vectors"), [(1600, 80), (24, 5), (1600, 400), (1, 1), (2304, 1000)])
def test_groups_are_exact_and_weights_close(tokens, vectors):
    given = page(tokens, vectors, grid=PatchGrid.tiled(2, 1, 3, 4, thumbnail=True))
    again = unpack(pack(given))
    assert np.array_equal(again["anchors"], given.anchors)
    assert np.array_equal(again["groups"], given.groups)
    assert again["grid"] == given.grid
    weights = given.weights.numpy()
    members = given.groups.numpy() >= 0
    assert np.abs(again["weights"] - weights).max() < 0.2
    assert np.allclose(np.bincount(again["groups"][members], again["weights"][members]), 1, atol=1e-5)
    large = weights > 0.02
    if large.sum() > 10:
        assert np.abs(np.log2(again["weights"][large] / weights[large])).max() < 0.6


def test_equal_weights_are_exact():
    groups = torch.arange(64) // 2
    given = EncodedPage(torch.zeros(32, 4), torch.arange(0, 64, 2), groups, torch.full((64,), 0.5))
    assert np.array_equal(unpack(pack(given))["weights"], given.weights)


def test_the_full_index_takes_next_to_nothing():
    every = torch.arange(1600)
    given = EncodedPage(torch.zeros(1600, 4), every, every, torch.ones(1600), PatchGrid.single(40, 40))
    stored = pack(given)
    assert len(stored) < 100
    again = unpack(stored)
    assert np.array_equal(again["groups"], every)
    assert again["weights"].min() == 1


def test_it_is_small():
    assert len(pack(page())) < 2.1 * 1600  # noise; a real page is far below, see docs/research/scale.md


def test_another_layout_is_refused():
    with pytest.raises(ValueError, match="layout"):
        unpack(b"\x07abc")
