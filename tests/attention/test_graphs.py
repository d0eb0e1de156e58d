"""Visual graphs equal their definitions, written with whole matrices."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from anchorfold.attention import graphs
from anchorfold.attention.graphs import GRAPHS, LayerView
from anchorfold.attention.signals import PropagatedAttention
from anchorfold.core.focus import centrality, layer_score, propagate

HEADS, KEY_HEADS, TOKENS, DIM = 4, 2, 23, 8
VISUAL = torch.arange(3, 20)


def layer_view(causal: bool, additive: bool = False) -> LayerView:
    generator = torch.Generator().manual_seed(0)
    query = 3 * torch.randn(HEADS, TOKENS, DIM, generator=generator)
    key = torch.randn(KEY_HEADS, TOKENS, DIM, generator=generator)
    allowed = torch.ones(TOKENS, TOKENS).tril().bool()[None]
    if additive:
        allowed = torch.zeros(allowed.shape).masked_fill_(~allowed, torch.finfo(torch.float32).min)
    value = torch.randn(KEY_HEADS, TOKENS, DIM, generator=generator)
    return LayerView(query, key, DIM**-0.5, VISUAL, allowed if causal else None, value)


def visual_logits(view: LayerView) -> torch.Tensor:
    key = view.key.repeat_interleave(HEADS // KEY_HEADS, 0)
    return (view.query @ key.transpose(1, 2) * view.scaling)[:, VISUAL][:, :, VISUAL]


def expected_scores(view: LayerView, name: str, steps: int) -> torch.Tensor:
    """The layer score of a graph, from whole `(H, N, N)` matrices."""
    kind, n = GRAPHS[name], len(VISUAL)
    lower = torch.ones(n, n).tril().bool() if view.allowed is not None else torch.ones(n, n).bool()
    logits = visual_logits(view)
    masked = logits.masked_fill(~lower, float("-inf"))
    if kind.logits == "unmasked":
        masked = logits
    if kind.logits == "mirrored":
        masked = torch.where(lower, logits, logits.transpose(1, 2))
    graph = masked.softmax(-1)
    if kind.value_weighted:
        graph = graph * view.value.repeat_interleave(HEADS // KEY_HEADS, 0)[:, VISUAL].norm(dim=-1)[:, None]
        graph = graph / graph.sum(-1, keepdim=True)
    if kind.without_sinks:
        received = graph.sum(1, keepdim=True)
        sinks = received > received.mean(-1, keepdim=True) + 3 * received.std(-1, correction=0, keepdim=True)
        graph = graph.masked_fill(sinks, 0)
        graph = graph / graph.sum(-1, keepdim=True).clamp(min=1e-38)
    if kind.symmetric:
        graph = graph + graph.transpose(1, 2)
        graph = graph / graph.sum(-1, keepdim=True)
    support = propagate(graph, steps)
    if kind.debiased:
        support = support / propagate((lower / lower.sum(-1, keepdim=True))[None], steps)
    return layer_score(support)


def scores(view: LayerView, name: str, steps: int) -> torch.Tensor:
    signal = PropagatedAttention(0, steps, name)
    return PropagatedAttention.measure([signal], view)[signal]


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_definition(name, causal, steps, monkeypatch):
    view = layer_view(causal)
    expected = expected_scores(view, name, steps)
    torch.testing.assert_close(scores(view, name, steps), expected, atol=1e-5, rtol=1e-4)
    monkeypatch.setattr(graphs, "ROW_BLOCK_BYTES", 4 * len(VISUAL) * 5)  # five rows at a time
    monkeypatch.setattr(graphs, "WORKING_BYTES", {True: 1, False: 1})  # one head at a time
    torch.testing.assert_close(scores(view, name, steps), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", GRAPHS)
def test_additive_masks(name):
    torch.testing.assert_close(scores(layer_view(True, additive=True), name, 2), scores(layer_view(True), name, 2))


@pytest.mark.parametrize("name", ["unmasked", "mirrored", "debiased"])
def test_bidirectional_attention_has_the_graph_of_the_paper(name):
    torch.testing.assert_close(scores(layer_view(False), name, 6), scores(layer_view(False), "attention", 6))


def test_causal_graph_drains_into_the_first_tokens_and_mirrored_does_not():
    view = layer_view(True)
    assert scores(view, "attention", 6)[:3].sum() > 0.8 * len(VISUAL)
    assert scores(view, "mirrored", 6)[:3].sum() < 0.6 * len(VISUAL)


def test_sinks_are_not_central():
    view = layer_view(False)
    view.query[:, :, 0], view.key[:, int(VISUAL[5]), 0] = 5, 20
    assert int(scores(view, "attention", 6).argmax()) == 5
    assert scores(view, "without-sinks", 6)[5] == 0


def numpy_scores(view: LayerView, name: str, steps: int) -> np.ndarray:
    """The layer score of a symmetric or value-weighted graph of a bidirectional layer, head by head in NumPy."""
    kind, n = GRAPHS[name], len(VISUAL)
    query, key, value = (t.double().numpy()[:, VISUAL.numpy()] for t in (view.query, view.key, view.value))
    support = np.full((HEADS, n), 1 / n)
    for head in range(HEADS):
        shared = head // (HEADS // KEY_HEADS)
        graph = np.exp(query[head] @ key[shared].T * view.scaling)
        if kind.value_weighted:
            graph = graph * np.linalg.norm(value[shared], axis=1)
        graph /= graph.sum(1, keepdims=True)
        if kind.symmetric:
            graph = graph + graph.T
            graph /= graph.sum(1, keepdims=True)
        for _ in range(steps):
            support[head] = support[head] @ graph
    score = np.sqrt((support**2).mean(0))
    return score / score.mean()


@pytest.mark.parametrize("name", ["attention", "symmetric", "value-weighted", "value-weighted-symmetric"])
def test_numpy_reference(name):
    view = layer_view(False)
    np.testing.assert_allclose(scores(view, name, 3).numpy(), numpy_scores(view, name, 3), rtol=1e-4)


def test_tokens_with_short_values_are_not_central():
    view = layer_view(False)
    view.query[:, :, 0], view.key[:, int(VISUAL[5]), 0] = 5, 20
    assert view.value is not None
    view.value[:, int(VISUAL[5])] = 0
    assert int(scores(view, "attention", 6).argmax()) == 5
    assert int(scores(view, "value-weighted", 6).argmin()) == 5


def test_value_weighted_graph_requires_values():
    with pytest.raises(ValueError, match="requires the values"):
        scores(replace(layer_view(False), value=None), "value-weighted", 1)


def test_paper_graph_is_the_default():
    view = layer_view(False)
    torch.testing.assert_close(
        PropagatedAttention.measure([PropagatedAttention(0)], view)[PropagatedAttention(0)],
        centrality([visual_logits(view).softmax(-1)], 6),
    )
