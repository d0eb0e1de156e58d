"""Folding without attention."""

import pytest
import torch
from torch.nn.functional import normalize

from anchorfold import AnchorFold, SimilarityFold, SpreadFold
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors import compressor
from anchorfold.core.focus import centrality, similarity_graph
from anchorfold.page import PageState

SETTINGS = LayerSettings(window=(1, 2), sap_window=(0, 1), layers=4)


def page(vectors):
    return PageState(vectors, lambda z: z)


def three_words_on_blank_paper():
    """Ten tokens of blank paper and three dissimilar words."""
    axes = torch.eye(8)
    noise = 0.01 * torch.randn(13, 8, generator=torch.Generator().manual_seed(0))
    return normalize(torch.cat([axes[:1].repeat(10, 1), axes[1:4]]) + noise, dim=1)


def test_similarity_graph_is_row_stochastic():
    graph = similarity_graph(three_words_on_blank_paper())
    assert graph.shape == (1, 13, 13)
    torch.testing.assert_close(graph.sum(-1), torch.ones(1, 13))
    assert graph[0, 0, 1:10].min() > graph[0, 0, 10:].max()


def test_centrality_equals_matrix_powers():
    vectors = normalize(torch.randn(20, 8, generator=torch.Generator().manual_seed(1)), dim=1).double()
    weights = torch.exp(vectors @ vectors.T / 0.1)
    walk = torch.linalg.matrix_power(weights / weights.sum(1, keepdim=True), 6).mean(0)
    torch.testing.assert_close(centrality([similarity_graph(vectors)], 6), walk / walk.mean())


def test_no_signals_are_required():
    for kind in (SimilarityFold(0.2), AnchorFold(0.2, anchors="similarity"), SpreadFold(0.2, anchors="similarity")):
        assert not kind.signals(SETTINGS)
    assert AnchorFold(0.2).signals(SETTINGS)


def test_anchors_are_dissimilar():
    folded = SimilarityFold(cap=4).compress(page(three_words_on_blank_paper()), SETTINGS)
    assert folded.anchors.tolist()[1:] == [10, 11, 12]
    assert folded.groups[:10].tolist() == [0] * 10


def test_without_spreading_all_anchors_are_blank():
    folded = AnchorFold(cap=4, anchors="similarity").compress(page(three_words_on_blank_paper()), SETTINGS)
    assert max(folded.anchors.tolist()) < 10


def test_registered_name():
    assert isinstance(compressor("similarity-fold", ratio=0.1), SimilarityFold)
    with pytest.raises(ValueError, match="similarity"):
        AnchorFold(0.1, anchors="nonsense")  # type: ignore[arg-type]
