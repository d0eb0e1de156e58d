"""`anchorfold models` lists published checkpoints without downloading them."""

import json

import pytest
from typer.testing import CliRunner

from anchorfold.attention.layer_settings import PAPER, LayerSettings, write_settings
from anchorfold.backbones.catalogue import KNOWN
from anchorfold.backbones.colqwen_layouts import LAYOUTS
from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.query import WEIGHTS
from anchorfold.backbones.weights import calibration_folder
from anchorfold.cli.app import app, load_commands
from anchorfold.testing import tiny

load_commands()


def run(*arguments):
    completed = CliRunner().invoke(app, ["models", *arguments], catch_exceptions=False)
    assert completed.exit_code == 0, completed.output
    return completed.output


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ANCHORFOLD_CACHE", str(tmp_path))


def test_one_line_per_model():
    output = run()
    for model in KNOWN:
        (line,) = [line for line in output.splitlines() if line.startswith(f"{model.name} ")]
        assert model.licence in line
        assert f" {model.dim}" in line
        assert ("causal" in line) == model.causal
    assert "11-14, 6" in output
    assert "the paper" in output


def test_every_family_is_listed():
    """Families of the tiny checkpoints under their names in the catalogue."""
    names = {"colvec": "colqwen3.5", "colqwen2-engine": "colqwen2", "colultravbert": "ultravbert"}
    kinds = {names.get(kind, kind) for kind in (*tiny.MAKERS, *tiny.MULTIVECTOR_MAKERS)}
    assert kinds | {"nano"} == {model.family for model in KNOWN}
    assert all(model.licence and model.dim for model in KNOWN)


def test_as_json():
    entries = {entry["name"]: entry for entry in json.loads(run("--json"))}
    colpali, nano = entries["vidore/colpali-v1.3-hf"], entries["nano"]
    assert (colpali["window"], colpali["sap_window"], colpali["steps"]) == ([11, 14], [11, 14], 6)
    assert (colpali["dim"], colpali["visual_tokens"], colpali["settings_from"]) == (128, 1024, "the paper")
    assert nano["settings_from"] == "this package"
    assert entries["TomoroAI/tomoro-colqwen3-embed-4b"]["settings_from"].startswith("a guess")


def test_a_calibration_on_this_machine_is_shown():
    file = calibration_folder("TomoroAI/tomoro-colqwen3-embed-4b") / "main-abc.json"
    write_settings(file, LayerSettings((20, 22), (3, 4), 36, steps=2))
    entry = {entry["name"]: entry for entry in json.loads(run("--json"))}["TomoroAI/tomoro-colqwen3-embed-4b"]
    assert (entry["window"], entry["steps"]) == ([20, 22], 2)
    assert entry["settings_from"] == "calibrated here (main-abc.json)"


def test_listed_settings_equal_the_loaded_ones():
    by_family = {model.family: model for model in KNOWN}
    for family, settings in PAPER.items():
        assert by_family[family].layers == settings.layers
    for model_type, layout in LAYOUTS.items():
        tokens = {model.visual_tokens for model in KNOWN if model.family == layout.family}
        if model_type != "qwen3_vl":  # as colpali-engine trains it: no such checkpoint is published
            assert layout.visual_tokens in tokens, model_type
    nano = NanoConfig.from_pretrained(WEIGHTS)
    listed = by_family["nano"]
    assert (listed.dim, listed.visual_tokens) == (nano.embedding_dim, nano.max_patches)
    assert listed.layers == nano.num_hidden_layers
