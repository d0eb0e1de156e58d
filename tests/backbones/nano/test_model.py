"""The architecture, with random weights: padding, taps, save and load."""

from typing import Any

import pytest
import torch
from PIL import Image

import anchorfold
from anchorfold.attention.layer_settings import LayerSettings, write_settings
from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.loudness import loudness, speak
from anchorfold.backbones.nano.model import NanoModel, eager_attention, rotary, rotate
from anchorfold.backbones.nano.processor import NanoImageProcessor
from anchorfold.backbones.nano.query import VOCABULARY_FILE, rarity
from anchorfold.backbones.nano.query_side import QuerySide
from anchorfold.backbones.nano.retriever import Nano
from anchorfold.backbones.nano.stem import ConvNorm, PatchStem

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
    assert model.settings.window == (3, 4)
    assert len(model.attention_layers) == 6
    assert not model.is_causal


def test_pages(model, images):
    pages = model.encode_pages(images, anchorfold.AnchorFold(ratio=0.2), batch_size=4)
    for page in pages:
        assert len(page) == anchorfold.budget.vector_budget(page.full, ratio=0.2)
        assert page.vectors.shape[1] == 128
        assert len(page.grid) == page.full


def test_batches_do_not_change_vectors(model, images):
    alone = model.encode_pages(images, batch_size=1)
    together = model.encode_pages(images, batch_size=len(images))
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(a.vectors, b.vectors, atol=1e-5, rtol=0)


def test_registers_are_no_visual_tokens(model, images):
    batch = model.prepare_pages(images)
    assert not batch.visual[:, : model.model.config.registers].any()
    assert batch.attention_mask[:, : model.model.config.registers].all()


def test_every_compressor_runs(model, images):
    for name in set(anchorfold.compressor_names()) - {"agc"}:  # wants a model that was trained for it
        compressor = anchorfold.compressor(name, **({} if name == "none" else {"ratio": 0.3}))
        if name == "docpruner":
            compressor.calibrate_on(model, images)
        for page in model.encode_pages(images, compressor):
            if name == "docpruner":  # as many as lie above its threshold
                assert 1 <= len(page) <= page.full
            else:
                ratio = 1 if name == "none" else 0.3
                assert len(page) == anchorfold.budget.vector_budget(page.full, ratio=ratio)


def test_queries_weigh_words_by_rarity(model):
    model.model.word_weights.data[:] = torch.tensor([0.1, 0.8, 0.7, 0.7, 0.6])
    (vectors,) = model.encode_queries(["The REVENUE, the unheard-of"])
    torch.testing.assert_close(vectors.norm(dim=1), torch.tensor([0.1, 0.8, 0.9, 0.9]))


def test_a_query_without_words(model):
    (vectors,) = model.encode_queries(["?!"])
    assert vectors.shape == (0, 128)


def test_unknown_words_go_by_spelling(model):
    near, far = model.encode_queries(["regions zebra"])[0]
    region = model.encode_queries(["xregion"])[0][0]
    assert region @ near > region @ far


def test_rarity():
    assert rarity(0, 1000) == rarity(1, 1000) == pytest.approx(1)
    assert 0 < rarity(1000, 1000) < rarity(10, 1000) < 1


def test_a_very_small_and_a_blank_page(model):
    pages = model.encode_pages([Image.new("L", (1, 1)), Image.new("RGB", (300, 300), "white")])
    assert [torch.isfinite(p.vectors).all().item() for p in pages] == [True, True]


def test_still_pairs_compare_words_wherever_they_stand():
    """Their part of a query and a key gives the same product at every distance; the others turn as before."""
    torch.manual_seed(0)
    query, key = torch.randn(16), torch.randn(16)
    far = torch.tensor([[0, 0], [0, 1], [40, 17]])
    cos, sin = rotary(far, 16, 100.0, still=1)
    quarters = torch.arange(16) % 8
    slowest = (quarters == 3) | (quarters == 7)
    turned = rotate(key.expand(3, -1), cos, sin) * query
    assert torch.allclose(turned[:, slowest].sum(1), (query * key)[slowest].sum().expand(3))
    assert turned[:, ~slowest].sum(1).std() > 0.01
    before = rotary(far, 16, 100.0)
    assert torch.equal(before[0][:, ~slowest], cos[:, ~slowest])
    assert not torch.allclose(before[0][2, slowest], torch.ones(4))
    model = NanoModel(NanoConfig(**SMALL, vocab_size=3, rope_still=1))
    assert torch.equal(model.turns(far)[0], rotary(far, 8, 100.0, still=1)[0])


def test_eager_attention_is_the_fast_one_with_its_weights():
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, 9, 8, generator=generator) for _ in range(3))
    seen = torch.rand(2, 1, 9, 9, generator=generator) > 0.3
    seen[..., 0] = True
    added = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
    for mask in (None, seen, added):
        output, weights = eager_attention(torch.nn.Identity(), query, key, value, mask, 8**-0.5)
        fast = torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)
        torch.testing.assert_close(output, fast.transpose(1, 2))
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 9))


def test_what_a_page_repeats_speaks_louder():
    """A patch turns away from its word by how seldom it is shown, and by that alone; like patches stay alike."""
    torch.manual_seed(0)
    words = torch.nn.functional.normalize(torch.randn(40, 64), dim=-1)
    words[:, -8:] = 0  # where no word lies
    words = torch.nn.functional.normalize(words, dim=-1)
    shown = words[[0, 0, 0, 0, 0, 0, 1, 2]]
    page = shown * torch.tensor([[3.0]] * 7 + [[0.5]])
    quietest = torch.tensor([0.6])
    spoken = speak(page, quietest, 8)
    loud = loudness(shown, quietest)
    assert loud[0] > loud[6] > 0.6
    assert loud[6] == pytest.approx(loud[7])
    assert torch.allclose(spoken.norm(dim=-1), page.norm(dim=-1), atol=1e-5)
    assert torch.allclose(
        torch.nn.functional.normalize(spoken, dim=-1) @ words.T, loud[:, None] * (shown @ words.T), atol=1e-5
    )
    assert torch.equal(spoken[0], spoken[5])
    assert torch.allclose(speak(page, torch.ones(1), 8), page, atol=1e-5)


def test_what_is_unsaid_cancels_in_averages():
    """Averages of different quiet patches lose no more by it than the patches themselves did."""
    torch.manual_seed(0)
    page = torch.randn(200, 128)
    page[:, -16:] = 0
    page = torch.nn.functional.normalize(page, dim=-1)
    quiet = torch.nn.functional.normalize(speak(page, torch.tensor([0.8]), 16), dim=-1)
    loud = loudness(page, torch.tensor([0.8]))
    kept = []
    for vectors in (page, quiet):
        mean = torch.nn.functional.normalize(vectors.view(50, 4, 128).mean(1), dim=-1)
        kept.append((mean.repeat_interleave(4, 0) * page).sum(-1).mean())
    assert (kept[1] / loud.mean()).item() == pytest.approx(kept[0].item(), rel=0.02)


def test_a_model_may_let_passing_mentions_speak_quietly(tmp_path, model, images):
    """Batches change nothing then either, folding averages what is spoken, and it is another model to an index."""
    loud = NanoModel(NanoConfig(**SMALL, vocab_size=len(model.words), silent=16))
    loud.load_state_dict({**model.model.state_dict(), "quietest": torch.full((1,), 0.5)})
    loud.save_pretrained(tmp_path)
    model.processor.save_pretrained(tmp_path)
    (tmp_path / VOCABULARY_FILE).write_text("\n".join(model.words.words))
    other = anchorfold.load(tmp_path)
    assert other.fingerprint != model.fingerprint
    assert QuerySide(tmp_path).fingerprint == other.fingerprint
    (quiet, *_), (before, *_) = other.encode_pages(images, batch_size=2), model.encode_pages(images)
    assert torch.allclose(quiet.vectors, other.encode_pages(images[:1])[0].vectors, atol=1e-5)
    turned = torch.nn.functional.normalize(speak(before.vectors, torch.tensor([0.5]), 16), dim=-1)
    assert torch.allclose(quiet.vectors, turned, atol=1e-4)
    (folded,) = other.encode_pages(images[:1], anchorfold.AnchorFold(ratio=0.2))
    assert torch.allclose(folded.vectors.norm(dim=-1), torch.ones(len(folded)), atol=1e-4)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.float16, 2e-2)])
def test_fixed_statistics_are_taken_along_by_the_convolution(dtype, close):
    torch.manual_seed(0)
    block = ConvNorm(3, 8, 3, 2)
    layers: list[Any] = list(block)
    conv, norm, gelu = layers
    block(torch.randn(2, 3, 12, 20))  # while training, statistics follow what is seen
    assert not torch.equal(norm.running_mean, torch.zeros(8))
    norm.weight.data.uniform_(0.5, 2)
    norm.bias.data.normal_()
    block.eval().to(dtype)
    x = torch.randn(1, 3, 12, 20).to(dtype)
    expected = gelu(norm(conv(x)))
    assert block(x).dtype == dtype
    torch.testing.assert_close(block(x), expected, atol=close, rtol=close)


def test_large_type_is_seen_at_an_eighth_of_the_size():
    """Pages of every number of rows and columns; what is large reaches patches that see none of its edges."""
    torch.manual_seed(0)
    stem = PatchStem(NanoConfig(**SMALL, eighth=True)).eval()
    for rows, columns in ((2, 1), (4, 2), (6, 3), (14, 7)):
        with torch.no_grad():
            assert stem(torch.randn(1, 1, 16 * rows, 32 * columns)).shape == (1, rows * columns, 32)
    page = torch.ones(1, 1, 512, 512)
    page[..., :64, :] = -1
    marked = page.clone()
    marked[..., 384:448, 320:384] = -1  # one letter, as large as those of a title, 200 pixels to the right of column 3
    assert stem.at_eighth is not None
    with torch.no_grad():
        moved = (stem(marked) - stem(page)).abs().sum(-1).view(32, 16)
        stem.at_eighth = None
        nearby = (stem(marked) - stem(page)).abs().sum(-1).view(32, 16)
    assert nearby[26, 3] < 1e-4 < moved[26, 3]
