import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import normalize

import anchorfold
from training.colqwen25.losses import batch_scores, contrastive_loss
from training.colqwen25.recipe import read_recipe

PAIRWISE = read_recipe().loss
CROSS_ENTROPY = replace(PAIRWISE, kind="cross-entropy")
SCORES = torch.tensor([[9.0, 8.0, 2.0], [4.0, 5.0, 7.0]])
ANSWERS = torch.tensor([0, 1])
LENGTHS = torch.tensor([10, 20])


def test_scores_are_maxsim_whatever_the_padding():
    g = torch.Generator().manual_seed(0)
    queries = [normalize(torch.randn(n, 8, generator=g), dim=-1) for n in (3, 5)]
    pages = [normalize(torch.randn(n, 8, generator=g), dim=-1) for n in (7, 2, 4)]
    junk = 9.0  # where padding is, vectors that would win

    def padded(vectors, length):
        block = torch.full((len(vectors), length, 8), junk)
        mask = torch.zeros(len(vectors), length, dtype=torch.bool)
        for row, vector in enumerate(vectors):
            block[row, length - len(vector) :], mask[row, length - len(vector) :] = vector, True
        return block, mask

    scores = batch_scores(*padded(queries, 6), *padded(pages, 7))
    assert torch.allclose(scores, anchorfold.maxsim(queries, pages), atol=1e-5)


def test_pairwise_is_softplus_against_the_hardest_page():
    expected = (math.log1p(math.exp(8 - 9)) + math.log1p(math.exp(7 - 5))) / 2
    assert contrastive_loss(SCORES, LENGTHS, ANSWERS, None, PAIRWISE).item() == pytest.approx(expected)


def test_cross_entropy_divides_by_length_and_temperature():
    rows = [[s / n / 0.02 for s in row] for row, n in zip(SCORES.tolist(), LENGTHS.tolist(), strict=True)]
    expected = sum(math.log(sum(map(math.exp, row))) - row[a] for row, a in zip(rows, (0, 1), strict=True)) / 2
    assert contrastive_loss(SCORES, LENGTHS, ANSWERS, None, CROSS_ENTROPY).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("recipe", [PAIRWISE, CROSS_ENTROPY])
def test_known_answers_do_not_count_against_a_query(recipe):
    known = torch.tensor([[True, True, False], [False, True, True]])  # each query's own page is known as well
    fewer = torch.tensor([[9.0, 2.0], [5.0, 4.0]])
    masked = contrastive_loss(SCORES, LENGTHS, ANSWERS, known, recipe)
    assert masked.item() == pytest.approx(
        contrastive_loss(fewer, LENGTHS, torch.tensor([0, 0]), None, recipe).item(), abs=1e-6
    )


@pytest.mark.parametrize("recipe", [PAIRWISE, CROSS_ENTROPY])
def test_a_page_without_rivals_teaches_nothing(recipe):
    scores = torch.tensor([[3.0]], requires_grad=True)
    loss = contrastive_loss(scores, torch.tensor([4]), torch.tensor([0]), None, recipe)
    loss.backward()
    assert (loss.item(), scores.grad.item()) == (0, 0)
