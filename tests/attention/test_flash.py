"""FlashAttention-2's dispatch, with a stand-in for its kernels: their signatures, no mask but padding, a causal flag.

transformers loads kernels by the name that the model's configuration has, and the tap must leave it alone. Everything
but the kernels is real here; neither they nor a GPU were run.
"""

import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers.modeling_flash_attention_utils as flash_utils
from transformers import AttentionInterface
from transformers.integrations.flash_attention import flash_attention_forward

import anchorfold
from anchorfold.attention import tap
from anchorfold.attention.signals import InDegree, LastTextAttention, PropagatedAttention
from anchorfold.attention.tap import AttentionTap, find_attention
from anchorfold.errors import UnreadableAttentionError

NAME = "flash_attention_2"
SIGNALS = [kind(layer) for kind in (PropagatedAttention, InDegree, LastTextAttention) for layer in (1, 4)]
SIGNALS.append(PropagatedAttention(0, graph="vision-tower"))


def attend(q, k, v, scale, causal, window):
    """One sequence `(T, H, d)`; keys may have fewer heads, and a window reaches so far to either side."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    logits = torch.einsum("qhd,khd->hqk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    distance = torch.arange(len(k))[None] - torch.arange(len(q))[:, None]
    hidden = (distance > 0) & torch.tensor(bool(causal))
    left, right = window
    hidden |= (distance < -left) & torch.tensor(left >= 0) | (distance > right) & torch.tensor(right >= 0)
    return torch.einsum("hqk,khd->qhd", logits.masked_fill(hidden, float("-inf")).softmax(-1), v)


@pytest.fixture
def kernels(monkeypatch):
    """A package `flash_attn` whose functions have the true signatures; returns the calls that they got."""
    calls = []

    def flash_attn_func(
        q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0,
        alibi_slopes=None, deterministic=False, return_attn_probs=False,
    ):  # fmt: skip
        calls.append("whole")
        rows = zip(q, k, v, strict=True)
        return torch.stack([attend(*row, softmax_scale, causal, window_size) for row in rows])

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        calls.append("unpadded")
        bounds = list(zip(cu_seqlens_q[:-1].tolist(), cu_seqlens_q[1:].tolist(), strict=True))
        return torch.cat([attend(q[a:b], k[a:b], v[a:b], softmax_scale, causal, window_size) for a, b in bounds])

    package: Any = ModuleType("flash_attn")
    padding: Any = ModuleType("flash_attn.bert_padding")
    package.flash_attn_func, package.flash_attn_varlen_func = flash_attn_func, flash_attn_varlen_func
    package.flash_attn_with_kvcache = flash_attn_func
    padding.pad_input, padding.unpad_input = flash_utils._pad_input, flash_utils._unpad_input
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.bert_padding", padding)
    monkeypatch.setattr(flash_utils, "is_flash_attn_2_available", lambda: True)
    monkeypatch.setattr(flash_utils, "_loaded_implementation", None)  # restored for other tests
    return calls


@pytest.fixture
def on_flash(models, kernels):
    """A model whose configurations ask for FlashAttention-2, as `attn_implementation` would."""
    changed = []

    def switch(kind):
        for config in tap._configs(models[kind].model):
            changed.append((config, config._attn_implementation))
            config._attn_implementation_internal = NAME
        return models[kind]

    yield switch
    for config, before in changed:
        config._attn_implementation_internal = before


def capture(model, batch):
    with AttentionTap(model.model, model.attention_layers, SIGNALS) as attention_tap:
        attention_tap.set_visual_tokens(batch.visual, batch.attention_mask)
        hidden = model._hidden(batch.inputs)
    return hidden, attention_tap.pages


# Causal and not, full attention and a sliding window, queries grouped and not. Not ColPali: FlashAttention cannot
# express its mask, which sees all of the prefix, and transformers lets it run causally.
@pytest.mark.parametrize("kind", ["colqwen2", "colqwen2.5", "colqwen3", "colmodernvbert", "nemotron", "nemotron-qwen3"])
@pytest.mark.parametrize("count", [1, 4])
def test_equals_scaled_dot_product_attention(on_flash, kernels, models, images, kind, count):
    batch = models[kind].prepare_pages(images[:count])
    hidden, pages = capture(models[kind], batch)
    model = on_flash(kind)
    plain = model._hidden(batch.inputs)
    untapped, kernels[:] = list(kernels), []
    flash_hidden, flash_pages = capture(model, batch)
    assert kernels == untapped  # every layer used its kernel
    assert "unpadded" in kernels if count > 1 else "whole" in kernels
    valid = batch.attention_mask.bool()
    assert torch.equal(flash_hidden[valid], plain[valid])
    torch.testing.assert_close(flash_hidden[valid], hidden[valid], atol=2e-5, rtol=1e-4)
    for ours, theirs in zip(flash_pages, pages, strict=True):
        for signal in SIGNALS:
            torch.testing.assert_close(ours[signal], theirs[signal], atol=1e-5, rtol=1e-3)


def test_pages_are_the_same(on_flash, models, images):
    compressor = anchorfold.AnchorFold(ratio=0.3)
    expected = models["colqwen2.5"].encode_documents(images, compressor, batch_size=2)
    for page, other in zip(
        on_flash("colqwen2.5").encode_documents(images, compressor, batch_size=2), expected, strict=True
    ):
        torch.testing.assert_close(page.vectors, other.vectors, atol=2e-5, rtol=0)
        assert page.anchors.tolist() == other.anchors.tolist()


def test_implementation_name_is_unchanged(on_flash, images):
    """Kernels are loaded by the model's own implementation name, and transformers is restored afterwards."""
    model = on_flash("colqwen2.5")
    batch = model.prepare_pages(images[:1])
    names = []
    handles = [
        layer.register_forward_pre_hook(lambda module, _: names.append(module.config._attn_implementation))
        for layer in model.attention_layers
    ]
    capture(model, batch)
    for handle in handles:
        handle.remove()
    assert set(names) == {NAME}
    assert flash_utils._loaded_implementation == NAME
    assert AttentionInterface()[NAME] is flash_attention_forward


def test_layers_are_detected(on_flash, images):
    model = on_flash("colqwen2.5")
    batch = model.prepare_pages(images[:1])
    layers = find_attention(model.model, lambda: model._hidden(batch.inputs), batch.visual.shape[1])
    assert [id(m) for m in layers] == [id(m) for m in model.attention_layers]


@pytest.mark.parametrize("name", ["flex_attention", "owner/unknown-kernel"])
def test_unsupported_implementation(models, name):
    model = models["colpali"]
    config = model.attention_layers[1].config
    before, config._attn_implementation_internal = config._attn_implementation, name
    try:
        with (
            pytest.raises(UnreadableAttentionError, match=rf"{name}.*load the model with 'sdpa'"),
            AttentionTap(model.model, model.attention_layers, [PropagatedAttention(1)]),
        ):
            pass
    finally:
        config._attn_implementation_internal = before
