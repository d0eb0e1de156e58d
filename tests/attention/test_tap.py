"""Captured signals equal those computed from eager attention."""

from typing import Any

import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import anchorfold
from anchorfold.attention import graphs, tap
from anchorfold.attention.signals import InDegree, LastTextAttention, PropagatedAttention
from anchorfold.attention.tap import AttentionTap, find_attention
from anchorfold.core.focus import centrality, visual_graph
from anchorfold.errors import UnreadableAttentionError

KINDS = ["colpali", "colqwen2", "colqwen2.5", "colqwen3", "colmodernvbert", "nemotron"]
LAYERS = range(6)


def eager_attentions(model, inputs):
    """`(B, H, T, T)` of each language layer, from the model's own eager attention."""
    caught: dict[int, torch.Tensor] = {}
    handles = [
        layer.register_forward_hook(lambda m, a, out, i=i: caught.__setitem__(i, out[1].detach()))
        for i, layer in enumerate(model.attention_layers)
    ]
    configs = [(c, c._attn_implementation) for c in tap._configs(model.model)]
    for config, _ in configs:
        config._attn_implementation_internal = "eager"
    try:
        model._hidden(inputs)
    finally:
        for config, before in configs:
            config._attn_implementation_internal = before
        for handle in handles:
            handle.remove()
    return [caught[i] for i in LAYERS]


def tapped(model, batch, signals):
    with AttentionTap(model.model, model.attention_layers, signals) as attention_tap:
        attention_tap.set_visual_tokens(batch.visual, batch.attention_mask)
        model._hidden(batch.inputs)
    return attention_tap.pages


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", KINDS)
class TestEqualsEager:
    @pytest.fixture
    def prepared(self, models, images, kind, side):
        model = models[kind]
        before, model.tokenizer.padding_side = model.tokenizer.padding_side, side
        batch = model.prepare_pages(images)
        model.tokenizer.padding_side = before
        return model, batch

    def test_propagated_attention(self, prepared):
        model, batch = prepared
        attentions = eager_attentions(model, batch.inputs)
        pages = tapped(model, batch, [PropagatedAttention(i, k) for i in LAYERS for k in (1, 6)])
        for b, page in enumerate(pages):
            for i in LAYERS:
                graph = visual_graph(attentions[i][b], batch.visual[b])
                for k in (1, 6):
                    torch.testing.assert_close(
                        page[PropagatedAttention(i, k)], centrality([graph], k), atol=1e-5, rtol=1e-4
                    )

    def test_in_degree(self, prepared):
        model, batch = prepared
        attentions = eager_attentions(model, batch.inputs)
        for b, page in enumerate(tapped(model, batch, [InDegree(i) for i in LAYERS])):
            visual = batch.visual[b].nonzero().flatten()
            for i in LAYERS:
                expected = attentions[i][b][:, visual][:, :, visual].sum(1).mean(0)
                torch.testing.assert_close(page[InDegree(i)], expected, atol=1e-5, rtol=1e-4)

    def test_last_text_attention(self, prepared):
        model, batch = prepared
        attentions = eager_attentions(model, batch.inputs)
        valid = batch.attention_mask.bool()
        for b, page in enumerate(tapped(model, batch, [LastTextAttention(5), LastTextAttention(5, 3)])):
            text = (valid[b] & ~batch.visual[b]).nonzero().flatten()
            for tokens in (1, 3):
                expected = attentions[5][b][:, text[-tokens:]][:, :, batch.visual[b]].mean((0, 1))
                torch.testing.assert_close(page[LastTextAttention(5, tokens)], expected, atol=1e-6, rtol=1e-4)


class TestCost:
    def test_only_requested_layers_are_measured(self, models, images, monkeypatch):
        model = models["colpali"]
        layers = []
        measure = PropagatedAttention.measure

        def record(_, requests, view):
            layers.append(requests[0].layer)
            return measure(requests, view)

        monkeypatch.setattr(PropagatedAttention, "measure", classmethod(record))
        tapped(model, model.prepare_pages(images[:1]), [PropagatedAttention(2), PropagatedAttention(3)])
        assert layers == [2, 3]

    def test_captured_values_are_vectors(self, models, images):
        model = models["colqwen2.5"]
        batch = model.prepare_pages(images)
        for page, visual in zip(
            tapped(model, batch, [PropagatedAttention(i) for i in LAYERS]), batch.visual, strict=True
        ):
            assert all(v.shape == (int(visual.sum()),) for v in page.values())

    def test_blockwise_computation_is_equal(self, models, images, monkeypatch):
        model = models["colqwen2.5"]
        batch = model.prepare_pages(images)
        requests = [PropagatedAttention(4, 2), PropagatedAttention(4, 6), InDegree(4)]
        whole = tapped(model, batch, requests)
        monkeypatch.setattr(graphs, "ROW_BLOCK_BYTES", 4 * 36 * 7)  # seven rows at a time
        monkeypatch.setattr(graphs, "WORKING_BYTES", {True: 1, False: 1})  # one head at a time
        for a, b in zip(whole, tapped(model, batch, requests), strict=True):
            for key in requests:
                torch.testing.assert_close(a[key], b[key])

    def test_blockwise_memory_is_bounded(self):
        """Propagation over 6,000 tokens keeps no matrix larger than its row block."""
        n, largest = 6000, 0
        view = graphs.LayerView(torch.randn(1, n, 8), torch.randn(1, n, 8), 0.3, torch.arange(n))

        class LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                nonlocal largest
                out = func(*args, **(kwargs or {}))
                if isinstance(out, torch.Tensor):
                    largest = max(largest, out.numel() * out.element_size())
                return out

        with LargestTensor():
            score = PropagatedAttention.measure([PropagatedAttention(0, 2)], view)[PropagatedAttention(0, 2)]
        assert score.shape == (n,)
        assert largest <= graphs.ROW_BLOCK_BYTES < 4 * n * n


class TestBehaviour:
    def test_the_model_is_unchanged_afterwards(self, models, images):
        model = models["colpali"]
        batch = model.prepare_pages(images[:1])
        before = {id(c): c._attn_implementation for c in tap._configs(model.model)}
        plain = model._hidden(batch.inputs)
        with AttentionTap(model.model, model.attention_layers, [PropagatedAttention(1)]) as attention_tap:
            attention_tap.set_visual_tokens(batch.visual, batch.attention_mask)
            assert torch.equal(model._hidden(batch.inputs), plain)
        assert {id(c): c._attn_implementation for c in tap._configs(model.model)} == before
        assert not any(tap._OBSERVERS in m.__dict__ for m in model.model.modules())
        assert AttentionInterface()["sdpa"] is sdpa_attention_forward

    def test_eager_attention_runs_as_sdpa_while_captured(self, models, images):
        model = models["colqwen2.5"]
        batch = model.prepare_pages(images[:1])
        expected = tapped(model, batch, [PropagatedAttention(1)])
        configs = tap._configs(model.model)
        before = [c._attn_implementation for c in configs]
        for config in configs:
            config._attn_implementation_internal = "eager"
        try:
            pages = tapped(model, batch, [PropagatedAttention(1)])
            assert {c._attn_implementation for c in configs} == {"eager"}
        finally:
            for config, name in zip(configs, before, strict=True):
                config._attn_implementation_internal = name
        assert torch.equal(pages[0][PropagatedAttention(1)], expected[0][PropagatedAttention(1)])

    def test_the_model_is_restored_after_an_error(self, models):
        model = models["colpali"]
        with pytest.raises(KeyError), AttentionTap(model.model, model.attention_layers, [PropagatedAttention(1)]):
            raise KeyError("inside")
        assert not any(tap._OBSERVERS in m.__dict__ for m in model.model.modules())
        assert AttentionInterface()["sdpa"] is sdpa_attention_forward

    def test_missing_visual_tokens(self, models, images):
        model = models["colpali"]
        with (
            pytest.raises(UnreadableAttentionError, match="set_visual_tokens"),
            AttentionTap(model.model, model.attention_layers, [PropagatedAttention(1)]),
        ):
            model._hidden(model.prepare_pages(images[:1]).inputs)

    def test_layer_out_of_range(self, models):
        model = models["colpali"]
        with pytest.raises(UnreadableAttentionError, match="the model has 6 layers"):
            AttentionTap(model.model, model.attention_layers, [PropagatedAttention(6)])

    def test_modules_without_the_attention_interface(self, models, images):
        """Modules that do not call the attention interface are reported."""
        model = models["colpali"]
        batch = model.prepare_pages(images[:1])
        modules = [torch.nn.Identity() for _ in range(2)]
        for module in modules:
            module.config = model.attention_layers[0].config

        def capture():
            with AttentionTap(model.model, modules, [PropagatedAttention(1)]) as attention_tap:
                attention_tap.set_visual_tokens(batch.visual, batch.attention_mask)
                model._hidden(batch.inputs)

        with pytest.raises(UnreadableAttentionError, match="AttentionInterface"):
            capture()

    @pytest.mark.parametrize("kind", KINDS)
    def test_find_attention_returns_the_language_layers(self, models, images, kind):
        model = models[kind]
        batch = model.prepare_pages(images[:1])
        layers = find_attention(model.model, lambda: model._hidden(batch.inputs), batch.visual.shape[1])
        assert [id(m) for m in layers] == [id(m) for m in model.attention_layers]

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_is_computed_in_float32(self, dtype):
        q, k = (torch.randn(4, 9, 8, generator=torch.Generator().manual_seed(i)).to(dtype) for i in (0, 1))
        view = graphs.LayerView(q, k[:2], 0.3, torch.arange(2, 9))
        full = graphs.LayerView(q.float(), k[:2].float(), 0.3, torch.arange(2, 9))
        kinds: tuple[Any, ...] = (PropagatedAttention, InDegree, LastTextAttention)
        for kind in kinds:
            score = kind.measure([kind(0)], view)[kind(0)]
            assert score.dtype == torch.float32
            torch.testing.assert_close(score, kind.measure([kind(0)], full)[kind(0)])


def test_vectors_do_not_depend_on_the_batch(models, images):
    for kind in KINDS:
        alone = models[kind].encode_documents(images, anchorfold.AnchorFold(ratio=0.3), batch_size=1)
        together = models[kind].encode_documents(images, anchorfold.AnchorFold(ratio=0.3), batch_size=len(images))
        for a, b in zip(alone, together, strict=True):
            torch.testing.assert_close(a.vectors, b.vectors, atol=1e-5, rtol=0)
            assert a.anchors.tolist() == b.anchors.tolist()
