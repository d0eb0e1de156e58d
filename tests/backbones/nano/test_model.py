"""Model architecture with random weights: padding, attention, saving and loading."""

import json
from typing import Any

import pytest
import torch
from PIL import Image

import anchorfold
from anchorfold.attention.layer_settings import LayerSettings, write_settings
from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.model import MINIMUM_WEIGHT, NanoModel, apply_rotary, compute_rotary, eager_attention
from anchorfold.backbones.nano.processor import NanoImageProcessor
from anchorfold.backbones.nano.query import VOCABULARY_FILE, NanoQueryEncoder
from anchorfold.backbones.nano.retriever import Nano
from anchorfold.backbones.nano.stem import ConvNorm, PatchStem
from anchorfold.backbones.nano.term_frequency import apply_term_frequency, term_frequency_weights
from anchorfold.core.budget import vector_budget

WORDS = ["the", "revenue", "employees", "staff", "region"]
SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "stem_channels": 16,
    "run_channels": 8,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nano")
    torch.manual_seed(0)
    NanoModel(NanoConfig(**SMALL, vocab_size=len(WORDS), max_patches=60)).save_pretrained(folder)
    NanoImageProcessor(max_patches=60).save_pretrained(folder)
    (folder / VOCABULARY_FILE).write_text("\n".join(WORDS))
    write_settings(folder / "anchorfold.json", LayerSettings((3, 4), (2, 3), 6))
    return folder


@pytest.fixture(scope="module")
def model(folder):
    return anchorfold.load(folder, device="cpu")


def test_loads_as_a_backbone(model):
    assert isinstance(model, Nano)
    assert model.layer_settings.window == (3, 4)
    assert len(model.attention_layers) == 6
    assert not model.is_causal


def test_pages(model, images):
    pages = model.encode_documents(images, anchorfold.AnchorFold(ratio=0.2), batch_size=4)
    for page in pages:
        assert len(page) == vector_budget(page.full, ratio=0.2)
        assert page.vectors.shape[1] == 128
        assert len(page.grid) == page.full


def test_batches_do_not_change_vectors(model, images):
    alone = model.encode_documents(images, batch_size=1)
    together = model.encode_documents(images, batch_size=len(images))
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(a.vectors, b.vectors, atol=1e-5, rtol=0)


def test_registers_are_not_visual_tokens(model, images):
    batch = model.prepare_pages(images)
    assert not batch.visual[:, : model.model.config.registers].any()
    assert batch.attention_mask[:, : model.model.config.registers].all()


def test_every_compressor_runs(model, images):
    for name in set(anchorfold.compressors.compressor_names()) - {"agc"}:  # requires universal tokens
        compressor = anchorfold.compressors.compressor(name, **({} if name == "none" else {"ratio": 0.3}))
        if name == "docpruner":
            compressor.calibrate_on(model, images)
        for page in model.encode_documents(images, compressor):
            if name == "docpruner":  # those above its threshold
                assert 1 <= len(page) <= page.full
            else:
                ratio = 1 if name == "none" else 0.3
                assert len(page) == vector_budget(page.full, ratio=ratio)


def test_query_vectors_are_scaled_by_word_weights(model):
    model.model.word_weights.data[:] = torch.tensor([0.1, 0.8, 0.7, 0.7, 0.6])
    (vectors,) = model.encode_queries(["The REVENUE, the unknown-word"])
    torch.testing.assert_close(vectors.norm(dim=1), torch.tensor([0.1, 0.8, 0.9, 0.9]))


def test_a_query_without_words(model):
    (vectors,) = model.encode_queries(["?!"])
    assert vectors.shape == (0, 128)


def test_unknown_words_are_encoded_by_spelling(model):
    near, far = model.encode_queries(["regions zebra"])[0]
    region = model.encode_queries(["xregion"])[0][0]
    assert region @ near > region @ far


def test_a_very_small_and_a_blank_page(model):
    pages = model.encode_documents([Image.new("L", (1, 1)), Image.new("RGB", (300, 300), "white")])
    assert [torch.isfinite(p.vectors).all().item() for p in pages] == [True, True]


def test_fixed_rotary_pairs_do_not_depend_on_the_distance():
    """Their part of the dot product is the same at every distance; the other pairs rotate."""
    torch.manual_seed(0)
    query, key = torch.randn(16), torch.randn(16)
    far = torch.tensor([[0, 0], [0, 1], [40, 17]])
    cos, sin = compute_rotary(far, 16, 100.0, fixed_pairs=1)
    quarters = torch.arange(16) % 8
    slowest = (quarters == 3) | (quarters == 7)
    products = apply_rotary(key.expand(3, -1), cos, sin) * query
    assert torch.allclose(products[:, slowest].sum(1), (query * key)[slowest].sum().expand(3))
    assert products[:, ~slowest].sum(1).std() > 0.01
    before = compute_rotary(far, 16, 100.0)
    assert torch.equal(before[0][:, ~slowest], cos[:, ~slowest])
    assert not torch.allclose(before[0][2, slowest], torch.ones(4))
    model = NanoModel(NanoConfig(**SMALL, vocab_size=3, rope_fixed_pairs=1))
    assert torch.equal(model.compute_rotary(far)[0], compute_rotary(far, 8, 100.0, fixed_pairs=1)[0])


def test_eager_attention_equals_sdpa():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, 9, 8, generator=generator) for _ in range(3))
    seen = torch.rand(2, 1, 9, 9, generator=generator) > 0.3
    seen[..., 0] = True
    added = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
    for mask, causal in ((None, False), (seen, False), (added, False), (None, True)):
        output, weights = eager_attention(torch.nn.Identity(), query, key, value, mask, 8**-0.5, causal)
        fast = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
        torch.testing.assert_close(output, fast.transpose(1, 2))
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 9))


def test_repeated_words_get_a_higher_weight():
    """The cosine with every word is multiplied by the weight, and vectors keep their length and similarity."""
    torch.manual_seed(0)
    words = torch.nn.functional.normalize(torch.randn(40, 64), dim=-1)
    words[:, -8:] = 0  # null dimensions
    words = torch.nn.functional.normalize(words, dim=-1)
    patches = words[[0, 0, 0, 0, 0, 0, 1, 2]]
    page = patches * torch.tensor([[3.0]] * 7 + [[0.5]])
    minimum = torch.tensor([0.6])
    weighted = apply_term_frequency(page, minimum, 8)
    weights = term_frequency_weights(patches, minimum)
    assert weights[0] > weights[6] > 0.6
    assert weights[6] == pytest.approx(weights[7])
    assert torch.allclose(weighted.norm(dim=-1), page.norm(dim=-1), atol=1e-5)
    cosines = torch.nn.functional.normalize(weighted, dim=-1) @ words.T
    assert torch.allclose(cosines, weights[:, None] * (patches @ words.T), atol=1e-5)
    assert torch.equal(weighted[0], weighted[5])
    assert torch.allclose(apply_term_frequency(page, torch.ones(1), 8), page, atol=1e-5)


def test_null_dimensions_cancel_in_averages():
    """Averages of different patches lose the same share of similarity as the patches themselves."""
    torch.manual_seed(0)
    page = torch.randn(200, 128)
    page[:, -16:] = 0
    page = torch.nn.functional.normalize(page, dim=-1)
    weighted = torch.nn.functional.normalize(apply_term_frequency(page, torch.tensor([0.8]), 16), dim=-1)
    weights = term_frequency_weights(page, torch.tensor([0.8]))
    similarities = []
    for vectors in (page, weighted):
        mean = torch.nn.functional.normalize(vectors.view(50, 4, 128).mean(1), dim=-1)
        similarities.append((mean.repeat_interleave(4, 0) * page).sum(-1).mean())
    assert (similarities[1] / weights.mean()).item() == pytest.approx(similarities[0].item(), rel=0.02)


def test_model_with_term_frequency_weights(tmp_path, model, images):
    """Batch size does not change vectors, compressors average weighted vectors, and the fingerprint differs."""
    config = NanoConfig(**SMALL, vocab_size=len(model.vocabulary), null_dimensions=16)
    weighted = NanoModel(config)
    weighted.load_state_dict({**model.model.state_dict(), MINIMUM_WEIGHT: torch.full((1,), 0.5)})
    weighted.save_pretrained(tmp_path)
    model.processor.save_pretrained(tmp_path)
    (tmp_path / VOCABULARY_FILE).write_text("\n".join(model.vocabulary.words))
    loaded = anchorfold.load(tmp_path)
    assert loaded.fingerprint == NanoQueryEncoder(tmp_path).fingerprint != model.fingerprint
    (page, *_), (before, *_) = loaded.encode_documents(images, batch_size=2), model.encode_documents(images)
    assert torch.allclose(page.vectors, loaded.encode_documents(images[:1])[0].vectors, atol=1e-5)
    expected = apply_term_frequency(before.vectors, torch.tensor([0.5]), 16)
    assert torch.allclose(page.vectors, torch.nn.functional.normalize(expected, dim=-1), atol=1e-4)
    (folded,) = loaded.encode_documents(images[:1], anchorfold.AnchorFold(ratio=0.2))
    assert torch.allclose(folded.vectors.norm(dim=-1), torch.ones(len(folded)), atol=1e-4)


def test_older_configuration_keys_are_accepted(tmp_path):
    config = NanoConfig(silent=16, eighth=True, rope_still=3)
    assert (config.null_dimensions, config.eighth_scale, config.rope_fixed_pairs) == (16, True, 3)
    config.save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["null_dimensions"] == 16
    assert not {"silent", "eighth", "rope_still"} & set(stored)


def test_causal_patches_do_not_attend_to_later_ones(tmp_path, model, images):
    causal = NanoModel(NanoConfig(**SMALL, vocab_size=len(model.vocabulary), max_patches=60, is_causal=True)).eval()
    causal.load_state_dict(model.model.state_dict())
    patches, positions = torch.randn(12, 32), torch.tensor([[r, c] for r in range(4) for c in range(3)])
    changed = torch.cat((patches[:8], torch.randn(4, 32)))
    earlier = 8 + causal.config.registers
    with torch.no_grad():
        for reader, blind in ((causal, True), (model.model, False)):
            before, after = (reader.encode([p], [positions])[0, :earlier] for p in (patches, changed))
            assert torch.equal(before, after) == blind
        # Padding comes last and is excluded by the same mask.
        padded = causal.encode([patches[:5], patches], [positions[:5], positions])[0, : causal.config.registers + 5]
        alone = causal.encode([patches[:5]], [positions[:5]])[0]
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=0)

    causal.save_pretrained(tmp_path)
    model.processor.save_pretrained(tmp_path)
    (tmp_path / VOCABULARY_FILE).write_text("\n".join(model.vocabulary.words))
    loaded = anchorfold.load(tmp_path)
    assert loaded.is_causal
    assert loaded.fingerprint == NanoQueryEncoder(tmp_path).fingerprint != model.fingerprint
    with pytest.warns(anchorfold.errors.CausalBackboneWarning):
        loaded.encode_documents(images[:1], anchorfold.AnchorFold(ratio=0.2))


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float16, 2e-2)])
def test_batch_statistics_are_folded_into_the_convolution(dtype, close):
    torch.manual_seed(0)
    block = ConvNorm(3, 8, 3, 2)
    layers: list[Any] = list(block)
    conv, norm, gelu = layers
    block(torch.randn(2, 3, 12, 20))  # training updates the statistics
    assert not torch.equal(norm.running_mean, torch.zeros(8))
    norm.weight.data.uniform_(0.5, 2)
    norm.bias.data.normal_()
    block.eval().to(dtype)
    x = torch.randn(1, 3, 12, 20).to(dtype)
    expected = gelu(norm(conv(x)))
    assert block(x).dtype == dtype
    torch.testing.assert_close(block(x), expected, atol=close, rtol=close)


def test_eighth_scale_has_a_larger_receptive_field():
    """It works for any number of rows and columns, and large letters reach distant patches."""
    torch.manual_seed(0)
    stem = PatchStem(NanoConfig(**SMALL, eighth_scale=True)).eval()
    for rows, columns in ((2, 1), (4, 2), (6, 3), (14, 7)):
        with torch.no_grad():
            assert stem(torch.randn(1, 1, 16 * rows, 32 * columns)).shape == (1, rows * columns, 32)
    page = torch.ones(1, 1, 512, 512)
    page[..., :64, :] = -1
    marked = page.clone()
    marked[..., 384:448, 320:384] = -1  # one letter of a title, 200 pixels to the right of column 3
    assert stem.at_eighth is not None
    with torch.no_grad():
        moved = (stem(marked) - stem(page)).abs().sum(-1).view(32, 16)
        stem.at_eighth = None
        nearby = (stem(marked) - stem(page)).abs().sum(-1).view(32, 16)
    assert nearby[26, 3] < 1e-4 < moved[26, 3]
