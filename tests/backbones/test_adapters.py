"""LoRA adapters: all of them fit or none is loaded, and the projection keeps its precision."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import linear

import anchorfold
from anchorfold.backbones.adapters import adapter_key, unload_adapters
from anchorfold.errors import CheckpointError


@pytest.fixture
def rewrite(adapter, tmp_path):
    """A copy of the adapters, changed by functions of the weights and of the configuration."""

    def write(change=lambda _: None, configure=lambda _: None):
        folder = shutil.copytree(adapter, tmp_path / "adapter")
        weights = load_file(folder / "adapter_model.safetensors")
        weights = change(weights) or weights
        save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        config = json.loads((folder / "adapter_config.json").read_text())
        configure(config)
        (folder / "adapter_config.json").write_text(json.dumps(config))
        return folder

    return write


def test_merged_equals_unmerged_and_differs_from_the_base(adapter, checkpoints, images):
    base = anchorfold.load(checkpoints["colqwen2.5"])
    merged = anchorfold.load(adapter)
    apart = anchorfold.load(adapter, merge_adapters=False)
    pages = [m.encode_documents(images[:2], anchorfold.AnchorFold(ratio=0.4)) for m in (base, merged, apart)]
    for b, m, a in zip(*pages, strict=True):
        torch.testing.assert_close(m.vectors, a.vectors, atol=1e-5, rtol=0)
        assert not torch.allclose(b.vectors, m.vectors, atol=1e-2)
    queries = [m.encode_queries(["net revenue"])[0] for m in (merged, apart)]
    torch.testing.assert_close(*queries, atol=1e-5, rtol=0)


@pytest.mark.parametrize("merge", [True, False])
def test_the_projection_runs_in_float32(adapter, merge):
    model = anchorfold.load(adapter, dtype=torch.bfloat16, merge_adapters=merge)
    layer = model.projection
    weight = layer.get_base_layer().weight.double()
    if not merge:
        down, up = (getattr(layer, name)["default"].weight.double() for name in ("lora_A", "lora_B"))
        weight = weight + layer.scaling["default"] * up @ down
    hidden = torch.randn(40, 32, generator=torch.Generator().manual_seed(0))
    exact = linear(hidden.double(), weight, layer.get_base_layer().bias.double())
    projected = model.project(hidden)
    assert projected.dtype == torch.float32
    torch.testing.assert_close(projected.double(), exact, atol=1e-5, rtol=1e-5)  # bfloat16 is off by a hundredth
    assert layer.merged is merge  # looking at the projection has not changed it


def test_adapters_that_fit_nothing(rewrite):
    def rename(weights):
        return {key.replace("language_model", "decoder"): w for key, w in weights.items() if "custom" not in key}

    with pytest.raises(CheckpointError, match=r"84 weights unexpected \(decoder\.layers\.0\.mlp\.down_proj\.lora_A"):
        anchorfold.load(rewrite(rename))


def test_a_layer_more_than_the_model_has(rewrite):
    def add(weights):
        key = next(k for k in weights if "layers.5.mlp.up_proj.lora_A" in k)
        weights[key.replace("layers.5", "layers.6")] = weights[key].clone()

    with pytest.raises(CheckpointError, match=r"1 weight unexpected \(language_model\.layers\.6\.mlp\.up_proj\."):
        anchorfold.load(rewrite(add))


def test_half_of_a_pair(rewrite):
    def drop(weights):
        del weights[next(k for k in weights if "custom_text_proj.lora_B" in k)]

    with pytest.raises(CheckpointError, match=r"1 weight missing \(custom_text_proj\.lora_B\.weight\)"):
        anchorfold.load(rewrite(drop))


def test_layers_that_its_configuration_means_and_that_were_not_saved(rewrite):
    def cut(weights):
        return {key: w for key, w in weights.items() if "layers.5" not in key}

    with pytest.raises(CheckpointError, match=r"7 weights missing \(language_model\.layers\.5\.mlp\.down_proj\.lora_A"):
        anchorfold.load(rewrite(cut))


def test_another_rank(rewrite):
    with pytest.raises(
        CheckpointError, match=r"weights of another shape \(custom_text_proj\.lora_A\.weight \[4, 32\] for"
    ):
        anchorfold.load(rewrite(configure=lambda config: config.update(r=8)))


def test_no_adapters_at_all(rewrite):
    with pytest.raises(CheckpointError, match="contains no LoRA weights"):
        anchorfold.load(rewrite(lambda weights: {"base_model.model.custom_text_proj.bias": torch.zeros(16)}))


def test_patterns_of_another_version_do_not_matter(rewrite, adapter, images):
    """Names that were saved are translated; the pattern, which follows the names of its day, is not needed."""

    def rename(weights):
        return {key.replace("model.language_model.", "model.model."): w for key, w in weights.items()}

    old = rewrite(rename, lambda config: config.update(target_modules=r"(^model\.layers.*_proj$|custom_text_proj)"))
    pages = [anchorfold.load(folder).encode_documents(images[:1])[0].vectors for folder in (old, adapter)]
    assert torch.equal(*pages)


def test_modules_trained_in_full(rewrite, adapter, images):
    bias = torch.arange(16.0)
    folder = rewrite(lambda weights: weights.update({"base_model.model.custom_text_proj.bias": bias}))
    for merge in (True, False):
        model = anchorfold.load(folder, merge_adapters=merge)
        plain = anchorfold.load(adapter, merge_adapters=merge)
        hidden = torch.randn(3, 32)
        difference = model.project(hidden) - plain.project(hidden)
        torch.testing.assert_close(difference, (bias - plain.projection.get_base_layer().bias).expand(3, -1))


def test_other_trainers_key_names():
    for saved, ours in {
        "base_model.model.model.layers.0.mlp.up_proj.lora_A": "language_model.layers.0.mlp.up_proj.lora_A",
        "base_model.model.model.language_model.norm.weight": "language_model.norm.weight",
        "base_model.model.language_model.layers.1.x": "language_model.layers.1.x",
        "base_model.model.custom_text_proj.lora_B.weight": "custom_text_proj.lora_B.weight",
        "base_model.model.model.visual.blocks.0.x": "visual.blocks.0.x",
        "base_model.model.vlm.model.language_model.layers.2.x": "language_model.layers.2.x",
        "base_model.model.embedding_proj_layer.lora_A.weight": "custom_text_proj.lora_A.weight",
    }.items():
        assert adapter_key(saved) == ours


def test_adapters_for_another_family(rewrite, checkpoints):
    folder = rewrite(configure=lambda config: config.update(base_model_name_or_path=str(checkpoints["colpali"])))
    with pytest.raises(ValueError, match="contains adapters for a colpali model; only adapters of the ColQwen"):
        anchorfold.load(folder)


class TestAdaptersOnAdapters:
    """A training that goes on from another one's adapters."""

    @pytest.fixture(scope="class")
    def second(self, adapter, tmp_path_factory):
        """Adapters on adapters, and the model that they were made in."""
        from peft import LoraConfig, get_peft_model

        model = anchorfold.load(adapter, device="cpu")
        unload_adapters(model.model)
        torch.manual_seed(2)
        tuned = get_peft_model(
            model.model, LoraConfig(r=2, target_modules=["q_proj", "custom_text_proj"], init_lora_weights=False)
        )
        tuned.peft_config["default"].base_model_name_or_path = str(adapter)
        folder = tmp_path_factory.mktemp("second")
        tuned.save_pretrained(folder)
        return folder, model

    @pytest.mark.parametrize("merge", [True, False])
    def test_both_count(self, second, adapter, images, merge):
        folder, expected = second
        model = anchorfold.load(folder, device="cpu", merge_adapters=merge)
        for page, other in zip(*(m.encode_documents(images[:2]) for m in (model, expected)), strict=True):
            torch.testing.assert_close(page.vectors, other.vectors, atol=1e-5, rtol=0)
        (first,) = anchorfold.load(adapter, device="cpu").encode_documents(images[:1])
        assert not torch.allclose(first.vectors, model.encode_documents(images[:1])[0].vectors, atol=1e-2)

    def test_their_own_base(self, rewrite, tmp_path):
        folder = rewrite(configure=lambda config: config.update(base_model_name_or_path=str(tmp_path / "adapter")))
        with pytest.raises(CheckpointError, match="correct base_model_name_or_path"):
            anchorfold.load(folder)


def test_universal_tokens_that_nobody_saved(rewrite, checkpoints):
    folder = rewrite()
    config = json.loads((checkpoints["colqwen2.5"] / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "universal_tokens": 4}))
    with pytest.raises(CheckpointError, match="trained with 4 universal tokens, but neither its adapters nor their"):
        anchorfold.load(folder)
