"""Compression of existing vectors and hidden states."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import anchorfold
from anchorfold import (
    SAP,
    AnchorFold,
    DocPruner,
    Pooling1D,
    SemanticClustering,
    compress_hidden_states,
    compress_vectors,
)
from anchorfold.attention.signals import InDegree
from anchorfold.core.focus import centrality, visual_graph
from anchorfold.core.fold import fold
from anchorfold.errors import AnchorFoldError
from anchorfold.page import PageState, PatchGrid
from anchorfold.vectors import compression
from anchorfold.vectors.compression import attention_free_methods

GENERATOR = torch.Generator().manual_seed(5)
HIDDEN = torch.randn(30, 12, generator=GENERATOR)
WEIGHT = torch.randn(12, 6, generator=GENERATOR)
ATTENTION = [torch.randn(4, 36, 36, generator=GENERATOR).softmax(-1) for _ in range(3)]
VISUAL = torch.arange(2, 32)


def project(z):
    return z @ WEIGHT.to(z.dtype)


class TestVectors:
    def test_attention_free_methods(self):
        pages = [np.random.default_rng(n).normal(size=(n, 16)) for n in (40, 7, 1)]
        for name in attention_free_methods():
            method = anchorfold.compressors.COMPRESSORS[name]
            chosen = method() if name == "none" else method.with_budget(0.2)
            small = compress_vectors(pages, chosen)
            assert [page.full for page in small] == [40, 7, 1]
            assert [len(page) for page in small] == ([40, 7, 1] if name == "none" else [8, 2, 1])
            for page in small if not name.endswith("-raw") else ():
                torch.testing.assert_close(page.vectors.norm(dim=1), torch.ones(len(page), dtype=page.vectors.dtype))

    def test_names_of_attention_free_methods(self):
        names = {"1d-pooling", "none", "random", "semantic-clustering", "similarity-fold", "ward"}
        assert names <= set(attention_free_methods())
        assert not {"anchorfold", "sap", "agc", "docpruner", "spread-fold"} & set(attention_free_methods())

    @pytest.mark.parametrize("name", ["anchorfold", "sap", "docpruner", "agc", "focus-clustering"])
    def test_methods_that_need_attention(self, name):
        with pytest.raises(AnchorFoldError, match=rf"{name} needs attention, .* choose one of 1d-pooling"):
            compress_vectors([HIDDEN], anchorfold.compressors.compressor(name, ratio=0.2))

    def test_equal_to_the_compressor(self):
        page = PageState(HIDDEN, lambda z: z)
        expected = SemanticClustering(0.2).compress(page, compression.NO_LAYERS)
        (small,) = compress_vectors([HIDDEN.numpy()], SemanticClustering(0.2))
        assert torch.equal(small.vectors, expected.vectors)
        assert torch.equal(small.groups, expected.groups)

    @pytest.mark.parametrize("dtype", ["float16", ">f4", "int8", "float64"])
    def test_array_types(self, dtype):
        array = np.random.default_rng(0).normal(size=(20, 8)) * 20
        (small,) = compress_vectors([array.astype(dtype)], Pooling1D(cap=5))
        (exact,) = compress_vectors([array.astype(dtype).astype(np.float32)], Pooling1D(cap=5))
        torch.testing.assert_close(small.vectors.float(), exact.vectors, atol=1e-3, rtol=0)

    def test_invalid_arrays(self):
        with pytest.raises(ValueError, match="shape"):
            compress_vectors([np.zeros((2, 3, 4))], Pooling1D(cap=1))
        with pytest.raises(ValueError, match="NaN"):
            compress_vectors([np.full((2, 3), np.nan)], Pooling1D(cap=1))
        with pytest.raises(ValueError, match="numbers"):
            compress_vectors([np.array([["a"]])], Pooling1D(cap=1))


class TestHiddenStates:
    def test_anchorfold_from_attention(self):
        alpha = centrality([visual_graph(layer, VISUAL) for layer in ATTENTION], 6)
        expected = fold(HIDDEN, alpha, 6, project)
        by_attention = compress_hidden_states(
            HIDDEN, AnchorFold(0.2), attention=ATTENTION, visual=VISUAL, project=project
        )
        by_centrality = compress_hidden_states(
            HIDDEN.numpy(), AnchorFold(0.2), centrality=alpha.numpy(), project=project
        )
        for page in (by_attention, by_centrality):
            torch.testing.assert_close(page.vectors, expected.vectors)
            assert torch.equal(page.anchors, expected.anchors)

    def test_visual_mask(self):
        mask = torch.zeros(36, dtype=torch.bool)
        mask[VISUAL] = True
        one, other = (
            compress_hidden_states(HIDDEN, AnchorFold(0.2), attention=ATTENTION, visual=v) for v in (VISUAL, mask)
        )
        assert torch.equal(one.vectors, other.vectors)

    def test_all_tokens_visual(self):
        attention = [visual_graph(layer, VISUAL) for layer in ATTENTION]
        one = compress_hidden_states(HIDDEN, AnchorFold(0.2), attention=attention)
        other = compress_hidden_states(HIDDEN, AnchorFold(0.2), attention=ATTENTION, visual=VISUAL)
        torch.testing.assert_close(one.vectors, other.vectors)

    def test_layer_numbers(self):
        layers = dict(zip((7, 8, 9), ATTENTION, strict=True))
        one = compress_hidden_states(HIDDEN, AnchorFold(0.2, window=(8, 9)), attention=layers, visual=VISUAL)
        other = compress_hidden_states(HIDDEN, AnchorFold(0.2), attention=ATTENTION[1:], visual=VISUAL)
        torch.testing.assert_close(one.vectors, other.vectors)
        with pytest.raises(ValueError, match="needs attention of layer 8"):
            compress_hidden_states(HIDDEN, AnchorFold(0.2, window=(8, 9)), attention=ATTENTION, visual=VISUAL)

    def test_other_signals(self, models, images):
        """A tiny ColPali run with eager attention: what the tap measured equals what its matrices give."""
        model = models["colpali"]
        first, last = model.layer_settings.sap_window
        signals = [InDegree(layer) for layer in range(first, last + 1)]
        (state,) = model.page_states(images[:1], [*signals, *DocPruner(0.2).signals(model.layer_settings)])
        attention, visual = eager_attention(model, images[0])
        page = compress_hidden_states(
            state.hidden, SAP(0.2, window=(first, last)), attention=attention, visual=visual, project=state.project
        )
        expected = model.compress_page(state, SAP(0.2))
        torch.testing.assert_close(page.vectors, expected.vectors, atol=1e-5, rtol=0)
        pruner = DocPruner(threshold=0.0)
        page = compress_hidden_states(state.hidden, pruner, attention=attention, visual=visual, project=state.project)
        assert page.anchors.tolist() == model.compress_page(state, pruner).anchors.tolist()

    def test_invalid_input(self):
        with pytest.raises(AnchorFoldError, match="needs attention, which"):
            compress_hidden_states(HIDDEN, AnchorFold(0.2))
        with pytest.raises(ValueError, match="pass the visual positions"):
            compress_hidden_states(HIDDEN, AnchorFold(0.2), attention=ATTENTION)
        with pytest.raises(ValueError, match="one value per token"):
            compress_hidden_states(HIDDEN, AnchorFold(0.2), centrality=torch.ones(3))
        with pytest.raises(ValueError, match="heads, tokens, tokens"):
            compress_hidden_states(HIDDEN, AnchorFold(0.2), attention=[torch.rand(30, 30)])
        only_visual = [visual_graph(layer, VISUAL) for layer in ATTENTION]
        with pytest.raises(ValueError, match="whole sequence"):
            compress_hidden_states(HIDDEN, DocPruner(threshold=0.0), attention=only_visual)

    def test_grid(self):
        grid = PatchGrid.single(5, 6)
        assert compress_hidden_states(normalize(HIDDEN, dim=1), Pooling1D(0.2), grid=grid).grid == grid


def eager_attention(model, image):
    """Attention `{layer: (H, T, T)}` of a page, and the positions of its visual tokens."""
    batch = model.prepare_pages([image])
    layers: dict[int, torch.Tensor] = {}
    language = model.model.vlm.language_model
    before = language.config._attn_implementation
    language.set_attn_implementation("eager")
    handles = [
        module.register_forward_hook(lambda _, args, output, layer=layer: layers.update({layer: output[1][0]}))
        for layer, module in enumerate(model.attention_layers)
    ]
    try:
        with torch.no_grad():
            model.forward(batch.inputs)
    finally:
        language.set_attn_implementation(before)
        for handle in handles:
            handle.remove()
    return layers, batch.visual[0].nonzero().flatten()
