import numpy as np
import pytest

from anchorfold.index.fusion import MOST_DECISIVE, RIVALS, decisiveness, fused, standard

rng = np.random.default_rng(3)
NOISE = rng.uniform(1, 1.2, 60)
WITH_TEXT = np.zeros(60, bool)


def ahead(page, by):
    """Scores of which one stands out."""
    scores = NOISE[rng.permutation(60)].copy()
    scores[page] = 1.2 + by
    return scores


def first(*arguments):
    return int(np.argmax(fused(*arguments)))


def test_the_side_with_the_larger_margin_decides():
    assert first(ahead(7, 1.0), ahead(9, 0.01), WITH_TEXT) == 7
    assert first(ahead(7, 0.01), ahead(9, 1.0), WITH_TEXT) == 9


def test_pages_that_match_both_come_first():
    visual, text = ahead(7, 0.3), ahead(9, 0.3)
    visual[20] = text[20] = 1.4
    assert first(visual, text, WITH_TEXT) == 20


def test_without_a_text_match_the_order_is_visual():
    visual = ahead(7, 0.1)
    assert (np.argsort(fused(visual, np.zeros(60), WITH_TEXT)) == np.argsort(visual)).all()


def test_pages_without_text_are_not_ranked_lower_for_it():
    visual, text = ahead(7, 0.5), NOISE.copy()
    text[7] = 0.0
    no_text = WITH_TEXT.copy()
    no_text[7] = True
    assert first(visual, text, no_text) == 7
    assert fused(visual, text, no_text)[7] > fused(visual, text, WITH_TEXT)[7]


def test_a_single_text_match_does_not_suppress_visual_scores():
    text = np.zeros(60)
    text[9] = 0.4
    both = fused(ahead(7, 1.0), text, WITH_TEXT)
    assert set(np.argsort(-both)[:2]) == {7, 9}


@pytest.mark.parametrize(("scores", "value"), [([5.0], 0.0), ([2.0, 2.0, 2.0], 0.0), ([3.0, 1.0, 1.0], MOST_DECISIVE)])
def test_few_scores_and_equal_ones(scores, value):
    assert decisiveness(np.array(scores)) == value
    assert np.isfinite(standard(np.array(scores))).all()
    assert np.isfinite(fused(np.array(scores), np.array(scores), np.zeros(len(scores), bool))).all()


def test_neither_scale_nor_far_pages_matter():
    scores = ahead(7, 0.1)
    assert decisiveness(scores * 30 + 5) == pytest.approx(decisiveness(scores))
    best = np.sort(scores)[::-1][: RIVALS + 1]
    assert decisiveness(best) == decisiveness(scores)
