import numpy as np
import pytest

from anchorfold.retrieval.fusion import MAX_MARGIN, RIVALS, fused_scores, score_margin, standardized

rng = np.random.default_rng(3)
NOISE = rng.uniform(1, 1.2, 60)
WITH_TEXT = np.zeros(60, bool)


def ahead(page, by):
    """Scores of which one stands out."""
    scores = NOISE[rng.permutation(60)].copy()
    scores[page] = 1.2 + by
    return scores


def first(*arguments):
    return int(np.argmax(fused_scores(*arguments)))


def test_the_side_with_the_larger_margin_decides():
    assert first(ahead(7, 1.0), ahead(9, 0.01), WITH_TEXT) == 7
    assert first(ahead(7, 0.01), ahead(9, 1.0), WITH_TEXT) == 9


def test_pages_that_match_both_come_first():
    visual, text = ahead(7, 0.3), ahead(9, 0.3)
    visual[20] = text[20] = 1.4
    assert first(visual, text, WITH_TEXT) == 20


def test_without_a_text_match_scores_are_visual():
    visual = ahead(7, 0.1)
    assert (fused_scores(visual, np.zeros(60), WITH_TEXT) == visual).all()


def test_scores_are_on_the_scale_of_visual_scores():
    visual, text = ahead(7, 0.3), 40 * ahead(9, 0.3)
    fused = fused_scores(visual, text, WITH_TEXT)
    assert fused.mean() == pytest.approx(visual.mean())
    assert fused.max() < visual.max() + 10 * visual.std()


def test_pages_without_text_are_not_ranked_lower_for_it():
    visual, text = ahead(7, 0.5), NOISE.copy()
    text[7] = 0.0
    no_text = WITH_TEXT.copy()
    no_text[7] = True
    assert first(visual, text, no_text) == 7
    assert fused_scores(visual, text, no_text)[7] > fused_scores(visual, text, WITH_TEXT)[7]


@pytest.mark.parametrize("matches", [1, 5])
def test_a_partial_text_match_does_not_outrank_the_best_visual_match_without_text(matches):
    no_text = np.arange(60) < 30
    visual, text = ahead(7, 0.01), np.zeros(60)
    text[40 : 40 + matches] = np.linspace(0.4, 0.2, matches)
    assert first(visual, text, no_text) == 7
    assert first(visual, text, WITH_TEXT) >= 40


def test_pages_without_text_keep_their_visual_order():
    visual, text, no_text = ahead(7, 0.1), ahead(40, 0.1), np.arange(60) < 30
    both = fused_scores(visual, np.where(no_text, 0, text), no_text)
    assert (np.argsort(both[:30]) == np.argsort(visual[:30])).all()


def test_a_single_text_match_does_not_suppress_visual_scores():
    text = np.zeros(60)
    text[9] = 0.4
    both = fused_scores(ahead(7, 1.0), text, WITH_TEXT)
    assert set(np.argsort(-both)[:2]) == {7, 9}


@pytest.mark.parametrize(("scores", "value"), [([5.0], 0.0), ([2.0, 2.0, 2.0], 0.0), ([3.0, 1.0, 1.0], MAX_MARGIN)])
def test_few_scores_and_equal_ones(scores, value):
    assert score_margin(np.array(scores)) == value
    assert np.isfinite(standardized(np.array(scores))).all()
    assert np.isfinite(fused_scores(np.array(scores), np.array(scores), np.zeros(len(scores), bool))).all()


def test_neither_scale_nor_far_pages_matter():
    scores = ahead(7, 0.1)
    assert score_margin(scores * 30 + 5) == pytest.approx(score_margin(scores))
    best = np.sort(scores)[::-1][: RIVALS + 1]
    assert score_margin(best) == score_margin(scores)
