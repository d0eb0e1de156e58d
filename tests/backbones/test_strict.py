"""A checkpoint is loaded whole or not at all, whatever its family."""

import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import anchorfold
from anchorfold.backbones.nano.query import WEIGHTS
from anchorfold.backbones.weights import check_report
from anchorfold.errors import CheckpointError
from tests.conftest import KINDS

# Modules without which a model would run, and find nothing. Files may name them otherwise than we do.
MODULES = {
    "colqwen2-engine": "custom_text_proj", "colqwen2.5": "custom_text_proj", "colqwen3": "custom_text_proj",
    "colqwen3.5": "custom_text_proj", "colvec": "custom_text_proj", "colgemma3": "custom_text_proj",
    "nano": "projection", "nemotron": "mlp1.3", "nemotron-qwen3": "visual.merger.norm",
}  # fmt: skip
PREFIXES = {"nemotron-qwen3": "model."}


@pytest.fixture
def rewrite(checkpoints, tmp_path):
    """A copy of a checkpoint, its weights changed by a function of the dictionary."""

    def write(kind, change):
        folder = shutil.copytree(WEIGHTS if kind == "nano" else checkpoints[kind], tmp_path / "copy")
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return folder

    return write


@pytest.mark.parametrize("kind", [*KINDS, "nano"])
class TestEveryBackbone:
    def test_missing_weights(self, rewrite, kind):
        name = MODULES.get(kind, "embedding_proj_layer")

        def drop(weights):
            for key in [key for key in weights if key.startswith(f"{PREFIXES.get(kind, '')}{name}.")]:
                del weights[key]

        with pytest.raises(CheckpointError, match=rf"\d weights missing \({name}\.\S+, {name}\..*complete checkpoint"):
            anchorfold.load(rewrite(kind, drop), device="cpu")

    def test_unexpected_weights(self, rewrite, kind):
        folder = rewrite(kind, lambda weights: weights.update({f"extra.{i}": torch.zeros(2) for i in range(5)}))
        with pytest.raises(CheckpointError, match=r"5 weights unexpected \(extra.0, extra.1, extra.2, \.\.\.\)"):
            anchorfold.load(folder, device="cpu")

    def test_weights_of_another_shape(self, rewrite, kind):
        key = MODULES.get(kind, "embedding_proj_layer") + ".bias"
        folder = rewrite(kind, lambda weights: weights.update({PREFIXES.get(kind, "") + key: torch.zeros(3)}))
        with pytest.raises(CheckpointError, match=rf"1 weight of another shape \({re.escape(key)} \[3\] for \[\d+\]\)"):
            anchorfold.load(folder, device="cpu")


def test_a_bare_vision_language_model_is_no_retriever(checkpoints, tmp_path):
    """Qwen2.5-VL as it is published: other key names, a head for words, and no projection."""
    folder = shutil.copytree(checkpoints["colqwen2.5"], tmp_path / "bare")
    weights = load_file(folder / "model.safetensors")
    bare = {
        key.replace("language_model.", "model."): value
        for key, value in weights.items()
        if not key.startswith("custom_text_proj")
    }
    bare["lm_head.weight"] = weights["language_model.embed_tokens.weight"].clone()
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        CheckpointError, match=r": 2 weights missing \(custom_text_proj.bias, custom_text_proj.weight\)\. "
    ):
        anchorfold.load(folder, device="cpu")


def test_the_head_for_words_is_not_needed(rewrite, models):
    folder = rewrite("colqwen2.5", lambda weights: weights.update({"lm_head.weight": torch.zeros(28, 32)}))
    assert anchorfold.load(folder, device="cpu").fingerprint == models["colqwen2.5"].fingerprint


def test_what_may_rightly_be_absent():
    def report(**keys):
        return {"missing_keys": [], "unexpected_keys": [], "mismatched_keys": [], "error_msgs": [], **keys}

    check_report("x", report(missing_keys=["stem.1.num_batches_tracked"], unexpected_keys=["vlm.lm_head.weight"]))
    check_report("x", report(unexpected_keys=["vision_model.head.probe"]), unused=[r"^vision_model\.head\."])
    for wrong in (
        {"missing_keys": ["lm_head.weight"]},
        {"unexpected_keys": ["stem.1.num_batches_tracked"]},
        {"unexpected_keys": ["vision_model.head.probe"]},
        {"unexpected_keys": ["my_lm_head.weight"]},
        {"error_msgs": ["a shard is broken"]},
    ):
        with pytest.raises(CheckpointError, match=r"x does not fit its architecture: "):
            check_report("x", report(**wrong))


class TestMultiVectorEncoder:
    """What sentence-transformers loads: weights of further modules may lie beside, but none may be missing."""

    def test_a_complete_one(self, colbert):
        assert anchorfold.load(colbert, device="cpu").dim == 128

    def test_missing_weights(self, colbert, tmp_path):
        folder = shutil.copytree(colbert, tmp_path / "copy")
        weights = load_file(folder / "model.safetensors")
        fewer = {key: weight for key, weight in weights.items() if "layer.3.attention.self" not in key}
        save_file(fewer, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match=r"6 weights missing \(encoder.layer.3.attention.self.key.bias, "):
            anchorfold.load(folder, device="cpu")

    def test_a_pooler_is_not_needed(self, colbert, tmp_path):
        folder = shutil.copytree(colbert, tmp_path / "copy")
        weights = load_file(folder / "model.safetensors")
        fewer = {key: weight for key, weight in weights.items() if "pooler" not in key}
        save_file(fewer, folder / "model.safetensors", metadata={"format": "pt"})
        assert len(fewer) == len(weights) - 2
        assert anchorfold.load(folder, device="cpu").dim == 128

    def test_a_bare_model_gets_no_random_projection(self, bert):
        with pytest.raises(CheckpointError, match="is a bare bert without a trained projection"):
            anchorfold.load(bert, device="cpu")
