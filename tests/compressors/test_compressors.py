"""Budgets of all compressors, and the definition of each."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

import anchorfold
from anchorfold import (
    AGC,
    AnchorFold,
    DocPruner,
    FocusClustering,
    Pooling1D,
    SemanticClustering,
    SpreadFold,
    Ward,
)  # fmt: skip
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import InDegree, LastTextAttention, PropagatedAttention
from anchorfold.compressors import COMPRESSORS
from anchorfold.core.budget import vector_budget
from anchorfold.core.fold import fold
from anchorfold.errors import AnchorFoldError
from anchorfold.page import PageState

SETTINGS = LayerSettings(window=(1, 2), sap_window=(0, 1), layers=4, universal=5)
BUDGETED = [
    "anchorfold", "spread-fold", "focus-clustering", "sap", "semantic-clustering",
    "semantic-clustering-raw", "1d-pooling", "1d-pooling-raw", "ward", "random", "agc",
]  # fmt: skip
WEIGHT = torch.randn(10, 6, generator=torch.Generator().manual_seed(3))


def project(z):
    return z @ WEIGHT.to(z.dtype)


def page(n=40, seed=0, equal=0):
    """A page with all signals; the last `equal` tokens are the same, as blank paper is."""
    g = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, 10, generator=g)
    if equal:
        hidden[-equal:] = hidden[-1]
    signals = {}
    for layer in range(4):
        for signal in (
            PropagatedAttention(layer, 1),
            PropagatedAttention(layer, 6),
            InDegree(layer),
            LastTextAttention(layer),
        ):
            signals[signal] = torch.rand(n, generator=g)
    signals[LastTextAttention(3, SETTINGS.universal)] = torch.rand(n, generator=g)
    return PageState(hidden, project, signals)


class TestBudget:
    @pytest.mark.parametrize("name", BUDGETED)
    @given(st.integers(1, 60), st.sampled_from([0.05, 0.1, 0.2, 0.5, 1.0]), st.integers(0, 99), st.integers(0, 60))
    @settings(max_examples=25, deadline=None)
    def test_exactly_m_vectors_in_page_order(self, name, n, ratio, seed, equal):
        folded = anchorfold.compressors.compressor(name, ratio=ratio).compress(page(n, seed, min(equal, n)), SETTINGS)
        m = vector_budget(n, ratio=ratio)
        assert folded.vectors.shape == (m, 6)
        assert folded.anchors.tolist() == sorted(set(folded.anchors.tolist()))
        assert folded.groups[folded.anchors].tolist() == list(range(m))
        grouped = folded.groups >= 0
        sums = torch.zeros(m).index_add_(0, folded.groups[grouped], folded.weights[grouped])
        torch.testing.assert_close(sums, torch.ones(m))

    @pytest.mark.parametrize("name", BUDGETED)
    def test_full_budget_is_the_full_index(self, name):
        state = page()
        for options in ({"ratio": 1}, {"cap": 40}, {"cap": 1000}):
            folded = anchorfold.compressors.compressor(name, **options).compress(state, SETTINGS)
            assert torch.equal(folded.vectors, state.embeddings)

    @pytest.mark.parametrize("name", BUDGETED)
    def test_cap(self, name):
        assert len(anchorfold.compressors.compressor(name, cap=7).compress(page(), SETTINGS)) == 7

    @pytest.mark.parametrize("name", BUDGETED)
    def test_invalid_budgets(self, name):
        for options in ({}, {"ratio": 0}, {"ratio": 1.1}, {"cap": 0}, {"ratio": 0.5, "cap": 3}):
            with pytest.raises(ValueError, match=r"ratio|cap"):
                anchorfold.compressors.compressor(name, **options)


class TestRegistry:
    def test_names(self):
        assert set(anchorfold.compressors.compressor_names()) >= {*BUDGETED, "docpruner", "none"}

    def test_unknown_name(self):
        with pytest.raises(AnchorFoldError, match="1d-pooling-raw, agc, anchorfold, docpruner"):
            anchorfold.compressors.compressor("zip")

    def test_register_and_unregister(self):
        @anchorfold.compressors.register
        class FirstTokens(anchorfold.compressors.BudgetCompressor):
            name = "first"

            def reduce(self, page, m, settings):
                return anchorfold.compressors.keep_tokens(page, torch.arange(m))

        try:
            folded = anchorfold.compressors.compressor("first", cap=3).compress(page(), SETTINGS)
            assert folded.anchors.tolist() == [0, 1, 2]
            with pytest.raises(ValueError, match="registered already"):
                anchorfold.compressors.register(FirstTokens)
        finally:
            COMPRESSORS.unregister("first")


class TestAnchorFold:
    def test_is_focus_then_fold(self):
        state = page()
        alpha = (state.signals[PropagatedAttention(1, 6)] + state.signals[PropagatedAttention(2, 6)]) / 2
        expected = fold(state.hidden, alpha, 8, project)
        folded = AnchorFold(ratio=0.2).compress(state, SETTINGS)
        assert torch.equal(folded.vectors, expected.vectors)
        assert torch.equal(folded.groups, expected.groups)

    def test_signals_of_the_window(self):
        assert AnchorFold(0.1).signals(SETTINGS) == [PropagatedAttention(1, 6), PropagatedAttention(2, 6)]
        assert AnchorFold(0.1, steps=1, window=(0, 0)).signals(SETTINGS) == [PropagatedAttention(0, 1)]

    def test_without_folding_keeps_the_anchors_own_vectors(self):
        state = page()
        folded, pruned = (AnchorFold(0.2, folding=f).compress(state, SETTINGS) for f in (True, False))
        assert torch.equal(folded.anchors, pruned.anchors)
        assert torch.equal(pruned.vectors, state.embeddings[pruned.anchors])
        assert (pruned.groups == -1).sum() == 32

    def test_random_anchors_differ_between_pages(self):
        draw = AnchorFold(0.2, anchors="random")
        drawn = {tuple(draw.compress(page(seed=s), SETTINGS).anchors.tolist()) for s in range(20)}
        assert len(drawn) == 20
        state = page()
        rounded = replace(state, hidden=state.hidden + 1e-6 * torch.randn(state.hidden.shape))
        assert torch.equal(draw.compress(state, SETTINGS).anchors, draw.compress(rounded, SETTINGS).anchors)

    def test_random_anchors_depend_on_the_seed(self):
        a, b, c = (AnchorFold(0.2, anchors="random", seed=s).compress(page(), SETTINGS).anchors for s in (1, 1, 2))
        assert torch.equal(a, b)
        assert not torch.equal(a, c)

    def test_uniform_weights(self):
        state = page()
        folded = AnchorFold(0.2, weights="uniform").compress(state, SETTINGS)
        assert torch.equal(folded.anchors, AnchorFold(0.2).compress(state, SETTINGS).anchors)
        group = (folded.groups == 0).nonzero().flatten()
        expected = normalize(project(state.hidden[group].mean(0)), dim=0)
        torch.testing.assert_close(folded.vectors[0], expected)

    def test_invalid_options(self):
        for options in ({"anchors": "best"}, {"weights": "log"}, {"steps": 0}):
            with pytest.raises(ValueError, match=next(iter(options))):
                AnchorFold(0.1, **options)

    def test_nan_in_the_page(self):
        state = page()
        state.hidden[3, 3] = torch.nan
        with pytest.raises(ValueError, match="hidden contains NaN"):
            AnchorFold(0.1).compress(state, SETTINGS)


class TestBaselines:
    def test_sap_keeps_the_largest_in_degrees(self):
        state = page()
        score = (state.signals[InDegree(0)] + state.signals[InDegree(1)]) / 2
        folded = anchorfold.SAP(0.25).compress(state, SETTINGS)
        assert set(folded.anchors.tolist()) == set(score.topk(10).indices.tolist())
        assert torch.equal(folded.vectors, state.embeddings[folded.anchors])

    def test_1d_pooling_groups_are_contiguous_and_even(self):
        for n, m in ((40, 7), (9, 4), (100, 99)):
            groups = Pooling1D(cap=m).compress(page(n), SETTINGS).groups
            assert (groups.diff() >= 0).all()
            sizes = groups.bincount()
            assert len(sizes) == m
            assert sizes.max() - sizes.min() <= 1

    def test_clusters_are_means_of_their_members(self):
        state = page()
        for compressor in (SemanticClustering(0.2), Ward(0.2), Pooling1D(0.2)):
            folded = compressor.compress(state, SETTINGS)
            for q in range(len(folded)):
                mean = state.embeddings[folded.groups == q].mean(0)
                torch.testing.assert_close(folded.vectors[q], normalize(mean, dim=0))

    @pytest.mark.parametrize("name", ["semantic-clustering", "1d-pooling"])
    def test_raw_variants_differ_by_the_norm_only(self, name):
        state = page()
        folded, raw = (
            anchorfold.compressors.compressor(n, ratio=0.2).compress(state, SETTINGS) for n in (name, f"{name}-raw")
        )
        assert torch.equal(raw.anchors, folded.anchors)
        assert torch.equal(raw.groups, folded.groups)
        means = torch.stack([state.embeddings[raw.groups == q].mean(0) for q in range(len(raw))])
        torch.testing.assert_close(raw.vectors, means)
        assert raw.vectors.norm(dim=1).min() < 0.9
        torch.testing.assert_close(normalize(raw.vectors), folded.vectors)

    def test_semantic_clustering_finds_clear_clusters(self):
        centres = torch.eye(10)[:5].repeat_interleave(8, 0)
        state = PageState(centres + 0.01 * torch.randn(40, 10, generator=torch.Generator().manual_seed(1)), lambda z: z)
        folded = SemanticClustering(cap=5).compress(state, SETTINGS)
        assert folded.groups.view(5, 8).eq(folded.groups.view(5, 8)[:, :1]).all()

    def test_ward_equals_sentence_transformers(self):
        from sentence_transformers.multi_vector_encoder.modules.token_pooling import HierarchicalTokenPooling

        for m in (5, 8, 20):
            state = page()
            theirs = HierarchicalTokenPooling(40 / m, num_protected_tokens=0).pool_one(state.embeddings)
            ours = Ward(cap=m).compress(state, SETTINGS).vectors
            assert len(theirs) == m
            # sentence-transformers returns the order of the tree.
            nearest = (ours @ theirs.T).argmax(1)
            assert sorted(nearest.tolist()) == list(range(m))
            torch.testing.assert_close(ours, theirs[nearest], atol=1e-5, rtol=0)


class TestAGC:
    def test_salient_vectors_are_the_centroids(self):
        state = page()
        saliency = state.signals[LastTextAttention(3, 5)]
        folded = AGC(cap=6).compress(state, SETTINGS)
        assert folded.anchors.tolist() == saliency.topk(6).indices.sort().values.tolist()
        members = folded.groups == 2
        mean = (state.embeddings[members] * saliency[members, None]).sum(0)
        torch.testing.assert_close(folded.vectors[2], mean / mean.norm())

    def test_model_without_universal_tokens(self):
        with pytest.raises(AnchorFoldError, match="universal tokens"):
            AGC(cap=6).compress(page(), replace(SETTINGS, universal=0))


class TestDocPruner:
    def pages(self, count=64):
        return [page(seed=i) for i in range(count)]

    def test_calibration_meets_the_ratio_on_average(self):
        for ratio in (0.5, 0.2, 0.05):
            pruner = DocPruner(ratio).calibrate(self.pages(), SETTINGS)
            counts = [len(pruner.compress(page(seed=i), SETTINGS)) for i in range(64)]
            assert abs(sum(counts) / (64 * 40) - ratio) < 0.02
            assert len(set(counts)) > 1

    def test_threshold_is_the_quantile_of_z_scores(self):
        scores = [state.signals[LastTextAttention(3)] for state in self.pages()]
        pooled = torch.cat([(s - s.mean()) / s.std(correction=0) for s in scores])
        pruner = DocPruner(0.2).calibrate(self.pages(), SETTINGS)
        assert pruner.threshold == pytest.approx(float(pooled.double().quantile(0.8)), abs=1e-6)

    def test_never_empty(self):
        folded = DocPruner(threshold=99.0).compress(page(), SETTINGS)
        assert folded.anchors.tolist() == [int(page().signals[LastTextAttention(3)].argmax())]

    def test_equal_scores(self):
        state = page()
        state.signals[LastTextAttention(3)] = torch.ones(40)
        assert len(DocPruner(threshold=0.5).compress(state, SETTINGS)) == 1

    def test_requires_calibration(self):
        with pytest.raises(ValueError, match="is not calibrated"):
            DocPruner(0.2).compress(page(), SETTINGS)
        with pytest.raises(ValueError, match="held-out pages"):
            DocPruner(0.2).calibrate([], SETTINGS)
        with pytest.raises(ValueError, match="requires a ratio"):
            DocPruner()


def two_words(copies):
    """A page that prints one word `copies` times, very central, and another once, less central; blank paper between."""
    g = torch.Generator().manual_seed(5)
    words, paper = torch.randn(2, 10, generator=g), torch.randn(10, generator=g)
    hidden = torch.stack([words[0]] * copies + [paper] * 6 + [words[1]]) + 1e-3 * torch.randn(
        copies + 7, 10, generator=g
    )
    alpha = torch.tensor([3.0] * copies + [0.05] * 6 + [1.0])
    return PageState(hidden, project, {PropagatedAttention(layer, 6): alpha for layer in range(4)})


class TestSpreadFold:
    def test_similar_anchors_are_avoided(self):
        state = two_words(copies=4)
        assert AnchorFold(cap=2).compress(state, SETTINGS).anchors.tolist() == [0, 1]
        anchors = SpreadFold(cap=2).compress(state, SETTINGS).anchors.tolist()
        assert anchors[0] < 4
        assert anchors[1] == len(state) - 1

    def test_dissimilar_tokens_are_selected_by_centrality(self):
        state = PageState(torch.eye(6), lambda z: z, {PropagatedAttention(i, 6): torch.arange(6.0) for i in range(4)})
        assert SpreadFold(cap=3).compress(state, SETTINGS).anchors.tolist() == [3, 4, 5]


class TestFocusClustering:
    def test_central_tokens_get_clusters_of_their_own(self):
        folded = FocusClustering(cap=2).compress(two_words(copies=1), SETTINGS)
        assert folded.groups[0] != folded.groups[-1]

    def test_without_centrality_it_is_k_means(self):
        state = page()
        state = PageState(state.hidden, project, {s: torch.ones(40) for s in state.signals})
        flat = PageState(state.embeddings, lambda z: z, state.signals)
        ours, theirs = (c(ratio=0.2).compress(flat, SETTINGS) for c in (FocusClustering, SemanticClustering))
        torch.testing.assert_close(ours.vectors, theirs.vectors)

    def test_hidden_states_are_averaged_before_the_projection(self):
        state = page(12)
        folded = FocusClustering(cap=3).compress(state, SETTINGS)
        first = (folded.groups == 0).nonzero().flatten()
        mean = (state.hidden[first] * folded.weights[first, None]).sum(0, keepdim=True)
        torch.testing.assert_close(folded.vectors[:1], normalize(project(mean)))
