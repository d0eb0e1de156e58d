"""Checkpoints and vectors that colpali-engine's own classes made: `golden/colpali_engine/README.md`."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import anchorfold
from anchorfold.errors import CheckpointError
from tests.backbones.golden.colpali_engine.inputs import QUERIES, pages

GOLDEN = Path(__file__).parent / "golden" / "colpali_engine"
KINDS = ("colpali", "colqwen2", "colqwen2.5", "colqwen3")
TOLERANCE = 2e-6  # float32; other processors sum in another order


def check(model, name, adapters):
    vectors = np.load(GOLDEN / f"{name}.npz")
    key = "lora" if adapters else "base"
    for i, query in enumerate(model.encode_queries(QUERIES)):
        np.testing.assert_allclose(query.numpy(), vectors[f"{key}_query_{i}"], atol=TOLERANCE)
    for i, page in enumerate(model.encode_documents(pages())):
        visual = model.prepare_pages([pages()[i]]).visual[0].numpy()
        np.testing.assert_allclose(page.vectors.numpy(), vectors[f"{key}_page_{i}"][visual], atol=TOLERANCE)
    assert not np.allclose(vectors["base_query_0"], vectors["lora_query_0"], atol=1e-2)


def adapters(name, folder):
    """Copy adapters with the absolute path of their base."""
    shutil.copytree(GOLDEN / f"{name}-lora", folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(GOLDEN / name)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def rename(folder, file, *changes):
    weights = load_file(folder / file)
    for pattern, name in changes:
        assert any(re.search(pattern, key) for key in weights)
        weights = {re.sub(pattern, name, key): weight for key, weight in weights.items()}
    save_file(weights, folder / file, metadata={"format": "pt"})


@pytest.mark.parametrize("name", KINDS)
def test_base_models_give_the_vectors_of_colpali_engine(name):
    check(anchorfold.load(GOLDEN / name, device="cpu"), name, adapters=False)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_adapters_give_the_vectors_of_colpali_engine(name, merge, tmp_path):
    model = anchorfold.load(adapters(name, tmp_path / "adapters"), device="cpu", merge_adapters=merge)
    assert model.family == name
    check(model, name, adapters=True)


def test_colpali_in_the_published_layout(tmp_path):
    """Of `vidore/colpali-v1.3` and its base, which older versions of transformers saved."""
    folder = adapters("colpali", tmp_path / "adapters")
    base = shutil.copytree(GOLDEN / "colpali", tmp_path / "base")
    rename(base, "model.safetensors", (r"^model\.vision_tower\.", "model.vision_tower.vision_model."))
    old = (r"model\.model\.language_model\.", "model.language_model.model.")
    rename(folder, "adapter_model.safetensors", old)
    config = json.loads((folder / "adapter_config.json").read_text())
    config["base_model_name_or_path"] = str(base)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    model = anchorfold.load(folder, device="cpu")
    assert not model.is_causal
    check(model, "colpali", adapters=True)


def test_colpali_adapters_that_do_not_fit_are_refused(tmp_path):
    folder = adapters("colpali", tmp_path / "adapters")
    rename(folder, "adapter_model.safetensors", (r"language_model\.layers\.1\.", "language_model.layers.2."))
    with pytest.raises(CheckpointError, match="do not fit their base model"):
        anchorfold.load(folder, device="cpu")


def test_folded_pages_of_colpali_adapters(tmp_path):
    model = anchorfold.load(adapters("colpali", tmp_path / "adapters"), device="cpu")
    (page,) = model.encode_documents(pages()[:1], anchorfold.AnchorFold(ratio=0.25))
    assert page.vectors.shape == (4, 128)
    torch.testing.assert_close(page.vectors.norm(dim=1), torch.ones(4))
