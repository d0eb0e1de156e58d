"""The tap against eager attention: the same numbers, from a model that never leaves its fast kernels."""

from typing import Any

import pytest
import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import anchorfold
from anchorfold.attention import signals, tap
from anchorfold.attention.signals import FromLastText, InDegree, Propagated
from anchorfold.attention.tap import AttentionTap, UnreadableAttentionError, find_attention
from anchorfold.focus import centrality, visual_graph

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
    with AttentionTap(model.model, model.attention_layers, signals) as listening:
        listening.look_at(batch.visual, batch.attention_mask)
        model._hidden(batch.inputs)
    return listening.pages


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

    def test_propagated(self, prepared):
        model, batch = prepared
        attentions = eager_attentions(model, batch.inputs)
        pages = tapped(model, batch, [Propagated(i, k) for i in LAYERS for k in (1, 6)])
        for b, page in enumerate(pages):
            for i in LAYERS:
                graph = visual_graph(attentions[i][b], batch.visual[b])
                for k in (1, 6):
                    torch.testing.assert_close(page[Propagated(i, k)], centrality([graph], k), atol=1e-5, rtol=1e-4)

    def test_in_degree(self, prepared):
        model, batch = prepared
        attentions = eager_attentions(model, batch.inputs)
        for b, page in enumerate(tapped(model, batch, [InDegree(i) for i in LAYERS])):
            visual = batch.visual[b].nonzero().flatten()
            for i in LAYERS:
                expected = attentions[i][b][:, visual][:, :, visual].sum(1).mean(0)
                torch.testing.assert_close(page[InDegree(i)], expected, atol=1e-5, rtol=1e-4)

    def test_from_last_text(self, prepared):
        model, batch = prepared
        attentions = eager_attentions(model, batch.inputs)
        valid = batch.attention_mask.bool()
        for b, page in enumerate(tapped(model, batch, [FromLastText(5), FromLastText(5, 3)])):
            text = (valid[b] & ~batch.visual[b]).nonzero().flatten()
            for tokens in (1, 3):
                expected = attentions[5][b][:, text[-tokens:]][:, :, batch.visual[b]].mean((0, 1))
                torch.testing.assert_close(page[FromLastText(5, tokens)], expected, atol=1e-6, rtol=1e-4)


class TestCost:
    def test_only_the_window_is_touched(self, models, images, monkeypatch):
        model = models["colpali"]
        layers = []
        measure = Propagated.measure

        def watch(_, requests, view):
            layers.append(requests[0].layer)
            return measure(requests, view)

        monkeypatch.setattr(Propagated, "measure", classmethod(watch))
        tapped(model, model.prepare_pages(images[:1]), [Propagated(2), Propagated(3)])
        assert layers == [2, 3]

    def test_no_square_matrix_survives(self, models, images):
        """What the tap keeps of a page is vectors of N."""
        model = models["colqwen2.5"]
        batch = model.prepare_pages(images)
        for page, visual in zip(tapped(model, batch, [Propagated(i) for i in LAYERS]), batch.visual, strict=True):
            assert all(v.shape == (int(visual.sum()),) for v in page.values())

    def test_block_wise_is_the_same(self, models, images, monkeypatch):
        model = models["colqwen2.5"]
        batch = model.prepare_pages(images)
        requests = [Propagated(4, 2), Propagated(4, 6), InDegree(4)]
        whole = tapped(model, batch, requests)
        monkeypatch.setattr(signals, "ROW_BLOCK_BYTES", 4 * 36 * 7)  # seven rows at a time
        monkeypatch.setattr(signals, "WORKING_BYTES", {True: 1, False: 1})  # one head at a time
        for a, b in zip(whole, tapped(model, batch, requests), strict=True):
            for key in requests:
                torch.testing.assert_close(a[key], b[key])

    def test_block_wise_memory_is_bounded(self):
        """Propagation over 6,000 tokens keeps no matrix larger than its row block."""
        n, largest = 6000, 0
        view = signals.LayerView(torch.randn(1, n, 8), torch.randn(1, n, 8), 0.3, torch.arange(n))

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                nonlocal largest
                out = func(*args, **(kwargs or {}))
                if isinstance(out, torch.Tensor):
                    largest = max(largest, out.numel() * out.element_size())
                return out

        with Watch():
            score = Propagated.measure([Propagated(0, 2)], view)[Propagated(0, 2)]
        assert score.shape == (n,)
        assert largest <= signals.ROW_BLOCK_BYTES < 4 * n * n


class TestManners:
    def test_the_model_is_unchanged_afterwards(self, models, images):
        model = models["colpali"]
        batch = model.prepare_pages(images[:1])
        before = {id(c): c._attn_implementation for c in tap._configs(model.model)}
        plain = model._hidden(batch.inputs)
        with AttentionTap(model.model, model.attention_layers, [Propagated(1)]) as listening:
            listening.look_at(batch.visual, batch.attention_mask)
            assert torch.equal(model._hidden(batch.inputs), plain)
        assert {id(c): c._attn_implementation for c in tap._configs(model.model)} == before
        assert not any(tap._HOOK in m.__dict__ for m in model.model.modules())
        assert AttentionInterface()["sdpa"] is sdpa_attention_forward

    def test_eager_attention_is_read_through_its_fast_equal(self, models, images):
        model = models["colqwen2.5"]
        batch = model.prepare_pages(images[:1])
        expected = tapped(model, batch, [Propagated(1)])
        configs = tap._configs(model.model)
        before = [c._attn_implementation for c in configs]
        for config in configs:
            config._attn_implementation_internal = "eager"
        try:
            pages = tapped(model, batch, [Propagated(1)])
            assert {c._attn_implementation for c in configs} == {"eager"}
        finally:
            for config, name in zip(configs, before, strict=True):
                config._attn_implementation_internal = name
        assert torch.equal(pages[0][Propagated(1)], expected[0][Propagated(1)])

    def test_an_error_inside_restores_too(self, models):
        model = models["colpali"]
        with pytest.raises(KeyError), AttentionTap(model.model, model.attention_layers, [Propagated(1)]):
            raise KeyError("inside")
        assert not any(tap._HOOK in m.__dict__ for m in model.model.modules())
        assert AttentionInterface()["sdpa"] is sdpa_attention_forward

    def test_forgetting_look_at(self, models, images):
        model = models["colpali"]
        with (
            pytest.raises(UnreadableAttentionError, match="look_at"),
            AttentionTap(model.model, model.attention_layers, [Propagated(1)]),
        ):
            model._hidden(model.prepare_pages(images[:1]).inputs)

    def test_a_layer_that_does_not_exist(self, models):
        model = models["colpali"]
        with pytest.raises(UnreadableAttentionError, match="the model has 6"):
            AttentionTap(model.model, model.attention_layers, [Propagated(6)])

    def test_attention_that_cannot_be_seen(self, models, images):
        """Modules that never call the attention interface are named, not silently ignored."""
        model = models["colpali"]
        batch = model.prepare_pages(images[:1])
        strangers = [torch.nn.Identity() for _ in range(2)]
        for stranger in strangers:
            stranger.config = model.attention_layers[0].config

        def listen():
            with AttentionTap(model.model, strangers, [Propagated(1)]) as listening:
                listening.look_at(batch.visual, batch.attention_mask)
                model._hidden(batch.inputs)

        with pytest.raises(UnreadableAttentionError, match="AttentionInterface"):
            listen()

    @pytest.mark.parametrize("kind", KINDS)
    def test_finds_the_language_layers_by_watching(self, models, images, kind):
        model = models[kind]
        batch = model.prepare_pages(images[:1])
        layers = find_attention(model.model, lambda: model._hidden(batch.inputs), batch.visual.shape[1])
        assert [id(m) for m in layers] == [id(m) for m in model.attention_layers]

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_models_are_measured_in_float32(self, dtype):
        q, k = (torch.randn(4, 9, 8, generator=torch.Generator().manual_seed(i)).to(dtype) for i in (0, 1))
        view = signals.LayerView(q, k[:2], 0.3, torch.arange(2, 9))
        wide = signals.LayerView(q.float(), k[:2].float(), 0.3, torch.arange(2, 9))
        kinds: tuple[Any, ...] = (Propagated, InDegree, FromLastText)
        for kind in kinds:
            score = kind.measure([kind(0)], view)[kind(0)]
            assert score.dtype == torch.float32
            torch.testing.assert_close(score, kind.measure([kind(0)], wide)[kind(0)])


def test_batches_give_each_page_the_same_vectors_as_alone(models, images):
    for kind in KINDS:
        alone = models[kind].encode_pages(images, anchorfold.AnchorFold(ratio=0.3), batch_size=1)
        together = models[kind].encode_pages(images, anchorfold.AnchorFold(ratio=0.3), batch_size=len(images))
        for a, b in zip(alone, together, strict=True):
            torch.testing.assert_close(a.vectors, b.vectors, atol=1e-5, rtol=0)
            assert a.anchors.tolist() == b.anchors.tolist()
