"""A calibration lies where `load` looks, for every kind of name."""

import json
import shutil
import warnings

import pytest
import torch

import anchorfold
from anchorfold.attention.layer_settings import LayerSettings, write_settings
from anchorfold.backbones.weights import cache_folder, calibration_file, load_strictly

SETTINGS = LayerSettings((1, 2), (0, 1), 6, steps=3)


def calibrated(settings):
    return (settings.window, settings.sap_window, settings.steps) == ((1, 2), (0, 1), 3)


@pytest.fixture
def hub(monkeypatch, checkpoints):
    """A model hub that holds one tiny model, under two names."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    def download(name, file, **_):
        if (path := checkpoints["colpali"] / file).is_file():
            return str(path)
        raise LocalEntryNotFoundError(file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("anchorfold.backbones.checkpoint.require_safetensors", lambda *_: None)
    real = load_strictly
    folder = str(checkpoints["colpali"])
    monkeypatch.setattr(
        "anchorfold.backbones.checkpoint.load_strictly",
        lambda kind, name, revision=None, **options: real(kind, folder, **options),
    )
    from transformers import ColPaliProcessor

    local = ColPaliProcessor.from_pretrained(folder, backend="pil")
    monkeypatch.setattr(ColPaliProcessor, "from_pretrained", lambda *_, **__: local)


def test_a_folder(checkpoints, tmp_path):
    folder = shutil.copytree(checkpoints["colpali"], tmp_path / "model")
    model = anchorfold.load(folder)
    assert model.calibration_file == folder / "anchorfold.json"
    write_settings(model.calibration_file, SETTINGS)
    again = anchorfold.load(folder)
    assert calibrated(again.layer_settings)
    assert again.layer_settings.source == str(folder / "anchorfold.json")


def test_adapters_have_their_own(adapter, checkpoints, tmp_path):
    folder = shutil.copytree(adapter, tmp_path / "adapter")
    model = anchorfold.load(folder)
    assert model.calibration_file == folder / "anchorfold.json"
    write_settings(model.calibration_file, SETTINGS)
    for merge in (True, False):
        assert calibrated(anchorfold.load(folder, merge_adapters=merge).layer_settings)
    assert not calibrated(anchorfold.load(checkpoints["colqwen2.5"]).layer_settings)


def test_calibration_of_the_base_is_not_used_for_its_adapters(adapter, checkpoints, tmp_path):
    base = shutil.copytree(checkpoints["colqwen2.5"], tmp_path / "base")
    write_settings(base / "anchorfold.json", SETTINGS)
    folder = shutil.copytree(adapter, tmp_path / "adapter")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(base)}))
    assert not calibrated(anchorfold.load(folder).layer_settings)


def test_a_hub_name(hub):
    model = anchorfold.load("owner/model")
    file = model.calibration_file
    assert file.is_relative_to(cache_folder() / "calibrations" / "owner--model")
    write_settings(file, SETTINGS)
    with warnings.catch_warnings():
        warnings.simplefilter("error", anchorfold.errors.UncalibratedWarning)
        assert calibrated(anchorfold.load("owner/model").layer_settings)
    for name, revision in (("owner/other", None), ("owner/model", "v2")):
        other = anchorfold.load(name, revision=revision)
        assert not calibrated(other.layer_settings)
        assert other.calibration_file != file


def test_the_key_follows_weights_and_mask():
    weights = {"a.weight": torch.arange(6.0), "a.lora_A.default.weight": torch.ones(3)}
    merged = {**weights, "a.weight": torch.zeros(6)}
    retrained = {**weights, "a.lora_A.default.weight": torch.zeros(3)}
    file = calibration_file("o/m", weights)
    assert calibration_file("o/m", merged) == file
    assert calibration_file("o/m", retrained) != file
    assert calibration_file("o/m", weights, bidirectional=True) != file
    assert calibration_file("o/m", {"a.weight": torch.zeros(6)}) != calibration_file("o/m", {"a.weight": torch.ones(6)})


def test_the_embedded_model_is_calibrated_in_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ANCHORFOLD_CACHE", str(tmp_path))
    model = anchorfold.load("nano", device="cpu")
    shipped = model.layer_settings
    assert model.calibration_file.is_relative_to(tmp_path)
    write_settings(model.calibration_file, LayerSettings((0, 1), (0, 1), shipped.layers, steps=2))
    assert anchorfold.load("nano", device="cpu").layer_settings.steps == 2
    model.calibration_file.unlink()
    assert anchorfold.load("nano", device="cpu").layer_settings == shipped


def test_the_users_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("ANCHORFOLD_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder().name == "anchorfold"
    assert cache_folder().is_relative_to(tmp_path)


class TestSettings:
    def test_given(self, checkpoints, tmp_path):
        write_settings(tmp_path / "elsewhere.json", SETTINGS)
        for settings in (SETTINGS, tmp_path / "elsewhere.json", str(tmp_path / "elsewhere.json")):
            with warnings.catch_warnings():
                warnings.simplefilter("error", anchorfold.errors.UncalibratedWarning)
                assert calibrated(anchorfold.load(checkpoints["colpali"], layer_settings=settings).layer_settings)

    def test_of_another_depth(self, checkpoints):
        with pytest.raises(ValueError, match="for a model of 18 layers, this one has 6"):
            anchorfold.load(checkpoints["colpali"], layer_settings=LayerSettings((1, 2), (0, 1), 18))

    def test_a_file_that_is_not_there(self, checkpoints, tmp_path):
        with pytest.raises(FileNotFoundError, match=r"none\.json"):
            anchorfold.load(checkpoints["colpali"], layer_settings=tmp_path / "none.json")

    def test_of_an_encoder_object(self, checkpoints):
        from tests.backbones.test_multivector import encoder_for

        model = anchorfold.load(encoder_for(checkpoints["colpali"]), layer_settings=SETTINGS)
        assert calibrated(model.layer_settings)
        assert model.calibration_file == checkpoints["colpali"] / "anchorfold.json"
