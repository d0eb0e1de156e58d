"""What `anchorfold.load` refuses in one sentence: devices that are not there, and weights that could run code."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

import anchorfold
from anchorfold.backbones.loading import available_devices, choose_device
from anchorfold.backbones.weights import require_safetensors
from anchorfold.errors import AnchorFoldError


class TestDevices:
    @pytest.mark.parametrize(("device", "problem"), [
        ("tpu", "unknown device 'tpu'"), ("cuda", "'cuda' is not available here"),
        ("cuda:7", "'cuda:7' is not available here"), ("meta", "'meta' cannot compute"),
    ])  # fmt: skip
    def test_one_that_cannot_be_used(self, device, problem, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(AnchorFoldError, match=f"{problem}.*: choose cpu.$"):
            anchorfold.load("nano", device=device)

    def test_the_best_there_is(self, monkeypatch):
        assert choose_device(None).type == available_devices()[0]
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
        assert available_devices() == ["cuda", "cuda:1", "cpu"]
        with pytest.raises(AnchorFoldError, match="choose cuda, cuda:1 or cpu"):
            choose_device("tpu")


def pickle_weights(folder, target, name="model"):
    """A copy of a checkpoint whose weights are in a pickle file only."""
    copy = shutil.copytree(folder, target)
    safe = copy / f"{name}.safetensors"
    torch.save(load_file(safe), copy / f"{'pytorch_model' if name == 'model' else name}.bin")
    safe.unlink()
    return copy


class TestPickles:
    @pytest.mark.parametrize("kind", ["colpali", "colqwen2.5"])
    def test_are_not_opened_unless_asked(self, checkpoints, images, models, kind, tmp_path, monkeypatch):
        folder = pickle_weights(checkpoints[kind], tmp_path / "model")
        with monkeypatch.context() as never:
            never.setattr(torch, "load", lambda *_, **__: pytest.fail("a pickle was opened"))
            with pytest.raises(AnchorFoldError, match=r"pytorch_model.bin.*safetensors.*allow_pickle=True"):
                anchorfold.load(folder)
        model = anchorfold.load(folder, device="cpu", allow_pickle=True)
        torch.testing.assert_close(
            model.encode_documents(images[:1])[0].vectors, models[kind].encode_documents(images[:1])[0].vectors
        )

    def test_safetensors_beside_them_are_taken(self, checkpoints, tmp_path):
        folder = shutil.copytree(checkpoints["colpali"], tmp_path / "model")
        for name in ("pytorch_model.bin", "training_args.bin", "optimizer.pt"):
            (folder / name).write_bytes(b"no pickle")
        assert anchorfold.load(folder).dim == 16

    def test_of_adapters(self, adapter, images, tmp_path):
        folder = pickle_weights(adapter, tmp_path / "adapter", "adapter_model")
        with pytest.raises(AnchorFoldError, match=r"adapter_model.bin.*allow_pickle=True"):
            anchorfold.load(folder)
        pages = [anchorfold.load(f, allow_pickle=True).encode_documents(images[:1])[0] for f in (folder, adapter)]
        assert torch.equal(pages[0].vectors, pages[1].vectors)

    def test_of_the_model_that_adapters_are_for(self, checkpoints, adapter, tmp_path):
        base = pickle_weights(checkpoints["colqwen2.5"], tmp_path / "base")
        folder = shutil.copytree(adapter, tmp_path / "adapter")
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(base)}))
        with pytest.raises(AnchorFoldError, match=r"base has weights in a pickle"):
            anchorfold.load(folder)
        assert anchorfold.load(folder, allow_pickle=True).dim == 16

    def test_of_an_encoder_and_its_parts(self, colbert, tmp_path):
        whole = pickle_weights(colbert, tmp_path / "whole")
        part = shutil.copytree(colbert, tmp_path / "part")
        (part / "1_Dense" / "model.safetensors").unlink()
        torch.save({}, part / "1_Dense" / "pytorch_model.bin")
        for folder in (whole, part):
            with pytest.raises(AnchorFoldError, match=r"pytorch_model.bin.*allow_pickle=True"):
                anchorfold.load(folder)
        assert anchorfold.load(whole, allow_pickle=True).dim == anchorfold.load(colbert).dim

    def test_of_a_hub_model(self, monkeypatch, tmp_path):
        """Refused by its list of files, before they are downloaded; what is cached needs no network."""
        files = {"1_Dense/pytorch_model.bin", "model.safetensors", "config.json"}
        siblings = [SimpleNamespace(rfilename=file) for file in files]
        monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: tmp_path)
        monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: SimpleNamespace(siblings=siblings))
        with pytest.raises(AnchorFoldError, match=r"1_Dense/pytorch_model.bin"):
            require_safetensors("owner/model")
        (tmp_path / "model.safetensors").touch()
        require_safetensors("owner/model")
