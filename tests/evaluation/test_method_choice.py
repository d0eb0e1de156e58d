"""Criteria that choose a method without labels: their choices and regrets on constructed scores."""

import numpy as np
import pytest

from anchorfold.evaluation.methods import FULL
from benchmarks.foreign_weights import RATIOS
from benchmarks.method_choice import DEFAULT, LABELS, labelled_regret, regrets

METHODS = ("anchorfold", "focus-clustering", "semantic-clustering", "random anchors")


@pytest.fixture
def result():
    """Eight pages with one pseudo-query each; random anchors are best, but no candidate."""
    labels = [FULL, *(f"{method}@{ratio:g}" for method in METHODS for ratio in RATIOS)]
    ndcg = {FULL: 90, "anchorfold": 80, "focus-clustering": 70, "semantic-clustering": 60, "random anchors": 90}
    # A score is what remains of the target's; another page always scores 0.5.
    kept = {FULL: 1.0, "anchorfold": 0.4, "focus-clustering": 0.9, "semantic-clustering": 0.6, "random anchors": 1.0}
    methods = [label if label == FULL else label.partition("@")[0] for label in labels]
    scores = np.stack([np.eye(8) * kept[m] + 0.5 * (1 - np.eye(8)) for m in methods]).astype(np.float32)
    return {
        "labels": np.array(labels), "ndcg": np.array([[float(ndcg[m])] * 6 for m in methods]),
        "retention": np.zeros((len(labels), 6)),
        "pages": np.array(8), "causal": np.array(False), "pseudo_scores": scores, "pseudo_pages": np.arange(8),
    }  # fmt: skip


def test_criteria_rank_by_pseudo_queries_and_are_rated_by_real_ones(result):
    choices = regrets([result], 0.1)
    assert choices["score retention"] == ("focus-clustering", 10.0)
    assert choices[DEFAULT] == ("focus-clustering", 10.0)
    assert choices["always anchorfold"] == ("anchorfold", 0.0)
    assert choices["always semantic-clustering"] == ("semantic-clustering", 20.0)
    assert "always random anchors" not in choices
    assert choices[LABELS][1] == 0.0


def test_one_choice_for_several_corpora_is_rated_over_all_queries(result):
    other = result | {"ndcg": result["ndcg"][:, :2] / 2}
    choice, regret = regrets([result, other], 0.1)["score retention"]
    assert choice == "focus-clustering"
    assert regret == pytest.approx((6 * 10 + 2 * 5) / 8)


def test_labelled_regret_rates_a_choice_over_the_other_half():
    # The first method is best on even queries only, the second on odd ones only.
    assert labelled_regret(np.array([[9.0, 1.0, 9.0, 1.0], [2.0, 4.0, 2.0, 4.0]])) == pytest.approx((3 + 7) / 2)
