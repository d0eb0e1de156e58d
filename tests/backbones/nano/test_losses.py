"""What the page reader is asked while training, on vectors of which the answer is plain."""

import math

import pytest
import torch

from training.nano import losses


def test_a_patch_decides_for_the_larger_of_its_words():
    """A patch of two words is asked for both, for the larger one more than by its share."""
    words, pairs = torch.eye(3)[:2], torch.tensor([[0, 0], [0, 1]])
    angles = torch.linspace(0, math.pi / 2, 200)
    asked = [
        losses.reading_loss(torch.tensor([[a.cos(), a.sin(), 0.0]]), words, pairs, torch.tensor([0.6, 0.4]))
        for a in angles
    ]
    best = min(range(200), key=lambda i: asked[i][0].item())
    first, second = angles[best].cos(), angles[best].sin()
    assert asked[best][1] == 1
    # At the optimum of the cross-entropy alone the odds are those of the squares, 0.36 to 0.16; closeness adds to it.
    assert (first - second) / losses.TEMPERATURE >= math.log(0.36 / 0.16) - 0.05
    assert asked[-1][1] == 0


def test_absent_words_must_not_find_a_patch():
    """A patch that shows an absent word pretends; one that shows a printed word, or nothing, does not."""
    words, present = torch.eye(4), torch.tensor([True, True, False, False])
    honest, pretending = torch.eye(4)[[0, 1, 0]], torch.eye(4)[[0, 1, 2]]
    assert losses.pretence_loss(pretending, words, present) > 100 * losses.pretence_loss(honest, words, present)
    # An absent word that is like a printed one may score as much as that likeness, whatever it is.
    alike = torch.nn.functional.normalize(torch.tensor([[1.0, 0.0], [0.9, 0.3]]), dim=1)
    printed = torch.tensor([True, False])
    assert losses.pretence_loss(alike[:1], alike, printed) == pytest.approx(math.log(2))
    assert losses.pretence_loss(alike[1:], alike, printed) > losses.pretence_loss(alike[:1], alike, printed)


def test_paper_stays_away_from_all_words():
    words = torch.eye(3)[:2]
    assert losses.paper_loss(torch.eye(3)[2:], words) < 0.01 < losses.paper_loss(torch.eye(3)[:1], words)
    assert losses.paper_loss(torch.zeros(0, 3), words) == 0


def test_anchors_are_chosen_for_what_they_add():
    vectors = torch.eye(4)[[0, 0, 1, 2, 3]]  # two patches print the first word; the last one prints none
    values = torch.tensor([0.9, 0.4, 0.1])
    anchors, added = losses.cover_words(vectors, torch.eye(4)[:3], values, 5)
    assert anchors.tolist() == [0, 2, 3]
    assert added.tolist() == pytest.approx([0.9, 0.4, 0.1])
    assert losses.cover_words(vectors, torch.eye(4)[:3], values, 1)[0].tolist() == [0]
    # The second mention shows the word better by a hair: the first is still chosen.
    hair = torch.nn.functional.normalize(vectors + torch.tensor([[0, 0, 0, 0.1]] + [[0.0] * 4] * 4), dim=1)
    assert losses.cover_words(hair, torch.eye(4)[:3], values, 5)[0].tolist()[0] == 0


def test_attention_gathers_at_the_anchors():
    anchors, added = torch.tensor([4, 1]), torch.tensor([0.9, 0.4])
    gathered, spread = torch.tensor([0.1, 1.5, 0.1, 0.1, 3.2]), torch.ones(5)
    assert losses.centrality_loss(gathered, anchors, added) < losses.centrality_loss(spread, anchors, added)
    assert losses.selection_loss(gathered, anchors, [1, 2]) < losses.selection_loss(spread, anchors, [1, 2])
    wrong = gathered.flip(0)
    assert losses.selection_loss(wrong, anchors, [1, 2]) > losses.selection_loss(spread, anchors, [1, 2])
    assert losses.selection_loss(spread, anchors[:0], [2]) == 0


def test_repeats_are_asked_to_look_at_their_anchor():
    vectors = torch.eye(3)[[0, 0, 1, 0, 2]]  # patches 1 and 3 repeat patch 0; the last one is blank
    printed, anchors, added = torch.arange(4), torch.tensor([0, 2]), torch.tensor([0.9, 0.4])
    even, pointing = torch.full((2, 5, 5), 0.2), torch.full((2, 5, 5), 0.2)
    pointing[0, 1], pointing[0, 3] = torch.eye(5)[0], torch.eye(5)[0]  # one head of the two
    assert losses.repeat_loss(even, vectors, printed, anchors, added).item() == pytest.approx(-math.log(0.2))
    assert losses.repeat_loss(pointing, vectors, printed, anchors, added).item() == pytest.approx(-math.log(0.6))
    assert losses.repeat_loss(even, torch.eye(5), printed, anchors, added) == 0  # nothing repeats
    assert losses.repeat_loss(even, vectors, printed, anchors[:0], added[:0]) == 0  # a page of single letters
