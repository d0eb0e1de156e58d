"""Losses of the page encoder on vectors with a known optimum."""

import math

import pytest
import torch

from training.nano import losses


def test_reading_loss_prefers_the_larger_word():
    """The optimum for a patch of two words is closer to the larger one than its share."""
    words, pairs = torch.eye(3)[:2], torch.tensor([[0, 0], [0, 1]])
    angles = torch.linspace(0, math.pi / 2, 200)
    results = [
        losses.reading_loss(torch.tensor([[a.cos(), a.sin(), 0.0]]), words, pairs, torch.tensor([0.6, 0.4]))
        for a in angles
    ]
    best = min(range(200), key=lambda i: results[i][0].item())
    first, second = angles[best].cos(), angles[best].sin()
    assert results[best][1] == 1
    # The odds at the optimum of the cross-entropy are those of the squares, 0.36 to 0.16; the distance adds to it.
    assert (first - second) / losses.TEMPERATURE >= math.log(0.36 / 0.16) - 0.05
    assert results[-1][1] == 0


def test_a_page_without_query_words_does_not_dominate_the_page_loss():
    words, absent = torch.eye(4)[:2], torch.tensor([[False], [False]])
    assert losses.word_page_loss([torch.eye(4)], words, absent, torch.zeros(2, 1)) < 10


def test_matches_of_absent_words_are_penalised():
    words, present = torch.eye(4), torch.tensor([True, True, False, False])
    correct, false = torch.eye(4)[[0, 1, 0]], torch.eye(4)[[0, 1, 2]]
    assert losses.absent_word_loss(false, words, present) > 100 * losses.absent_word_loss(correct, words, present)
    # An absent word may score as high as its similarity to a printed word.
    similar = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.3]]), dim=1)
    printed = torch.tensor([True, False])
    assert losses.absent_word_loss(similar[:1], similar, printed) == pytest.approx(math.log(2))
    assert losses.absent_word_loss(similar[1:], similar, printed) > losses.absent_word_loss(
        similar[:1], similar, printed
    )


def test_matches_of_background_are_penalised():
    words = torch.eye(3)[:2]
    assert losses.background_loss(torch.eye(3)[2:], words) < 0.01 < losses.background_loss(torch.eye(3)[:1], words)
    assert losses.background_loss(torch.zeros(0, 3), words) == 0


def test_anchors_are_selected_by_gain():
    vectors = torch.eye(4)[[0, 0, 1, 2, 3]]  # two patches show the first word, the last one none
    values = torch.tensor([0.9, 0.4, 0.1])
    anchors, gains = losses.select_anchors(vectors, torch.eye(4)[:3], values, 5)
    assert anchors.tolist() == [0, 2, 3]
    assert gains.tolist() == pytest.approx([0.9, 0.4, 0.1])
    assert losses.select_anchors(vectors, torch.eye(4)[:3], values, 1)[0].tolist() == [0]
    # The second occurrence matches slightly better: the first one is still selected.
    perturbed = torch.nn.functional.normalize(vectors + torch.tensor([[0, 0, 0, 0.1]] + [[0.0] * 4] * 4), dim=1)
    assert losses.select_anchors(perturbed, torch.eye(4)[:3], values, 5)[0].tolist()[0] == 0


def test_attention_is_trained_towards_the_anchors():
    anchors, gains = torch.tensor([4, 1]), torch.tensor([0.9, 0.4])
    gathered, spread = torch.tensor([0.1, 1.5, 0.1, 0.1, 3.2]), torch.ones(5)
    assert losses.centrality_loss(gathered, anchors, gains) < losses.centrality_loss(spread, anchors, gains)
    assert losses.selection_loss(gathered, anchors, [1, 2]) < losses.selection_loss(spread, anchors, [1, 2])
    wrong = gathered.flip(0)
    assert losses.selection_loss(wrong, anchors, [1, 2]) > losses.selection_loss(spread, anchors, [1, 2])
    assert losses.selection_loss(spread, anchors[:0], [2]) == 0


def test_repetitions_are_trained_to_attend_to_their_anchor():
    vectors = torch.eye(3)[[0, 0, 1, 0, 2]]  # patches 1 and 3 repeat patch 0; the last one is blank
    printed, anchors, gains = torch.arange(4), torch.tensor([0, 2]), torch.tensor([0.9, 0.4])
    even, pointing = torch.full((2, 5, 5), 0.2), torch.full((2, 5, 5), 0.2)
    pointing[0, 1], pointing[0, 3] = torch.eye(5)[0], torch.eye(5)[0]  # one head of the two
    assert losses.repeat_loss(even, vectors, printed, anchors, gains).item() == pytest.approx(-math.log(0.2))
    assert losses.repeat_loss(pointing, vectors, printed, anchors, gains).item() == pytest.approx(-math.log(0.6))
    assert losses.repeat_loss(even, torch.eye(5), printed, anchors, gains) == 0  # no repetitions
    assert losses.repeat_loss(even, vectors, printed, anchors[:0], gains[:0]) == 0  # no anchors
