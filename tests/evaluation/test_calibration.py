import json
import weakref
from pathlib import Path

import pytest
import torch

from anchorfold import AnchorFold
from anchorfold.attention.layer_settings import PAPER
from anchorfold.backbones.base import BackboneEncoder
from anchorfold.core.scoring import score_retention
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation.calibration import (
    OTHER_GRAPHS,
    Calibration,
    calibrate,
    choose_depth,
    choose_window,
    compare_on_pairs,
    paired_gaps,
    window_retentions,
)
from anchorfold.evaluation.tables import calibration_table
from anchorfold.evaluation.training_set import TRAINING_SET
from anchorfold.page import PageState

ORACLE = json.loads((Path(__file__).parent.parent / "oracle" / "calibration.json").read_text())


@pytest.mark.parametrize("case", ORACLE["windows"], ids=lambda c: str(len(c["profile"])))
def test_windows_match_the_oracle(case):
    assert list(choose_window(case["profile"])) == case["window"]


def test_depth_matches_the_oracle():
    assert choose_depth({int(k): v for k, v in ORACLE["depth"]["sr"].items()}) == ORACLE["depth"]["chosen"]


def test_score_retention_matches_the_oracle():
    case = ORACLE["score_retention"]
    arrays = [torch.tensor(case[k], dtype=torch.float64) for k in ("query", "full", "small")]
    expected = next(v for k, v in case.items() if not isinstance(v, list))
    assert score_retention(*arrays) == pytest.approx(expected, abs=1e-9)


def test_the_papers_figures_are_shown_for_its_own_pairs_only():
    depths = {2: (9, 12), 6: (11, 14)}
    calibration = Calibration(
        PAPER["colpali"], {}, [], depths, {k: [98.0, 99.0] for k in depths}, [90.0, 91.0]
    )  # fmt: skip
    assert "paper" in calibration_table(calibration, "colpali", TRAINING_SET).heads
    for family, pairs in (("colpali", "./my-corpus"), ("nano", TRAINING_SET)):
        table = calibration_table(calibration, family, pairs)
        assert "paper" not in table.heads
        assert {len(line) for line in table.lines} == {len(table.heads)}


@pytest.mark.parametrize(
    ("symmetric", "expected"), [([93.0, 92.0, 93.5], "symmetric"), ([99.0, 80.0, 91.0], "attention")]
)
def test_the_papers_graph_is_kept_unless_another_one_is_significantly_better(symmetric, expected):
    values = {6: [90.0, 89.0, 91.0]}
    calibration = Calibration(PAPER["colpali"], {}, [], {6: (11, 14)}, values, [90.0] * 3, {"symmetric": symmetric})
    graph, gain, error = calibration.best_graph
    assert graph == expected
    assert (gain > 2 * error) == (expected == "symmetric")


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([5.0, 6.0, 7.0], True),
        ([0.0, 0.1, 0.2], False),  # better than random anchors, but not by enough
        ([-5.0, -6.0, -7.0], False),
        ([-9.0, 3.0, 9.0], None),
    ],
)
def test_suitability_needs_a_useful_gain_over_random_anchors(gains, expected):
    values = {6: [90.0 + g for g in gains]}
    calibration = Calibration(PAPER["colpali"], {}, [], {6: (11, 14)}, values, [90.0] * 3)
    assert calibration.is_suitable is expected


def test_window_rules():
    assert choose_window([1, 2, 3, 4, 5]) == (4, 4)  # nothing trails: the last layers
    assert choose_window([5, 5, 5, 1, 1]) == (2, 2)
    assert choose_window([5, 9, 1, 1, 1, 1], rho=0.5) == (3, 5)  # ties with the median do not trail
    assert choose_window([7.0]) == (0, 0)


def test_the_window_never_starts_before_the_first_layer():
    assert choose_window([9, 1, 1, 1, 0.5], rho=0.9)[0] == 0


def test_depth_prefers_the_smallest_within_one_standard_error():
    noise = torch.randn(200, generator=torch.Generator().manual_seed(0))
    values = {2: 90 + noise, 4: 95 + noise, 6: 95.001 + noise + 0.2 * noise.flip(0)}
    assert choose_depth(values) == 4
    assert choose_depth({6: [95.0, 96.0], 2: [95.0, 96.0]}) == 2


def test_bad_input():
    with pytest.raises(ValueError, match="one finite value"):
        choose_window([])
    with pytest.raises(ValueError, match="rho"):
        choose_window([1.0], rho=0)
    with pytest.raises(ValueError, match="same calibration pairs"):
        choose_depth({2: [1.0], 3: [1.0, 2.0]})
    with pytest.raises(ValueError, match="undefined"):
        score_retention(torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2))


class TestCalibrate:
    def test_finds_settings_for_a_backbone(self, models, images):
        model = models["colqwen2.5"]
        calibration = calibrate(model, [("net revenue", i) for i in images], depths=(2, 6))
        assert calibration.settings.layers == 6
        assert calibration.settings.steps == choose_depth(calibration.values)
        assert calibration.settings.window == calibration.windows[calibration.settings.steps]
        assert [len(calibration.profiles[k]) for k in (2, 6)] == [6, 6]
        assert len(calibration.values[6]) == len(images)

    def test_values_are_those_of_the_deployed_operator(self, models, images):
        model = models["colqwen2.5"]
        calibration = calibrate(model, [("net revenue", images[0])], depths=(6,))
        first, last = calibration.windows[6]
        (page,) = model.encode_documents(images[:1], AnchorFold(0.2, window=(first, last), steps=6))
        (full,) = model.encode_documents(images[:1])
        (query,) = model.encode_queries(["net revenue"])
        assert calibration.values[6][0] == pytest.approx(score_retention(query, full, page), abs=1e-3)

    def test_random_anchors_equal_the_ablation(self, models, images):
        model = models["colqwen2.5"]
        calibration = calibrate(model, [("net revenue", images[0])], depths=(6,))
        window = calibration.settings.window
        (page,) = model.encode_documents(images[:1], AnchorFold(0.2, window=window, steps=6, anchors="random"))
        (full,) = model.encode_documents(images[:1])
        (query,) = model.encode_queries(["net revenue"])
        assert calibration.random[0] == pytest.approx(score_retention(query, full, page), abs=1e-3)

    def test_graphs_are_compared_at_the_chosen_window(self, models, images):
        model = models["colqwen2.5"]
        calibration = calibrate(model, [("net revenue", images[0])], depths=(2,))
        window = calibration.settings.window
        assert list(calibration.graphs) == [*OTHER_GRAPHS[model.is_causal], "vision-tower"]
        (page,) = model.encode_documents(images[:1], AnchorFold(0.2, window=window, steps=2, graph="symmetric"))
        (full,) = model.encode_documents(images[:1])
        (query,) = model.encode_queries(["net revenue"])
        assert calibration.graphs["symmetric"][0] == pytest.approx(score_retention(query, full, page), abs=1e-3)

    def test_retention_of_given_windows(self, models, images):
        model, pairs = models["colqwen2.5"], [("net revenue", i) for i in images]
        calibration = calibrate(model, pairs, depths=(2, 6))
        candidates = [(calibration.windows[k], k) for k in (2, 6)]
        means = [sum(calibration.values[k]) / len(images) for k in (2, 6)]
        assert window_retentions(model, pairs, candidates) == pytest.approx(means, abs=1e-4)

    def test_survives_a_file(self, models, images):
        calibration = calibrate(models["colpali"], [("net revenue", i) for i in images], depths=(2, 3))
        assert Calibration.from_json(json.loads(json.dumps(calibration.as_json()))) == calibration

    def test_pages_are_not_stored(self, models, images, monkeypatch):
        """At most two at a time: the one in use and the next one, while it is encoded."""
        model, most = models["colqwen2.5"], [0]
        alive: weakref.WeakSet[PageState] = weakref.WeakSet()

        def states(given, signals=()):
            for state in BackboneEncoder.page_states(model, given, signals):
                alive.add(state)
                most[0] = max(most[0], len(alive))
                yield state

        monkeypatch.setattr(PageState, "__hash__", object.__hash__)
        monkeypatch.setattr(model, "page_states", states)
        pairs = [("net revenue", i) for i in (*images, *images)]
        calibrate(model, pairs, depths=(2, 3))
        compare_on_pairs(model, pairs, [0.25], ["anchorfold", "sap"])
        assert most[0] <= 2
        with pytest.raises(ValueError, match="reads its pairs twice"):
            calibrate(model, iter(pairs))

    def test_needs_pairs(self, models):
        with pytest.raises(AnchorFoldError, match="query-page pairs"):
            calibrate(models["colpali"], [])


def test_paired_gaps_by_hand():
    gaps = paired_gaps({6: [90.0, 92.0, 94.0], 2: [89.0, 92.0, 92.0]})
    assert list(gaps) == [2, 6]
    assert gaps[6] == (0, 0)
    assert gaps[2] == pytest.approx((1, 1 / 3**0.5))
