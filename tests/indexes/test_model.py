"""An index stores what is needed to load its model again."""

import json
import shutil

import pytest

import anchorfold
from anchorfold import Index
from anchorfold.backbones.base import BackboneEncoder
from anchorfold.errors import AnchorFoldError
from anchorfold.indexes.index_model import IndexModel
from anchorfold.storage.index_settings import IndexSettings
from tests.number_reader import write_pdf


def test_options_are_stored_and_used_again(tmp_path, checkpoints):
    folder = shutil.copytree(checkpoints["colqwen2.5"], tmp_path / "causal")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"].pop("is_causal")
    (folder / "config.json").write_text(json.dumps(config))
    model = anchorfold.load(folder, bidirectional=True)
    index = Index.create(tmp_path / "my.index", model)
    assert index.settings.load_options == {"bidirectional": True}
    index.add(write_pdf(tmp_path / "a.pdf", [1]))
    again = Index.open(tmp_path / "my.index")
    assert isinstance(again.encoder, BackboneEncoder)
    assert not again.encoder.is_causal
    assert again.search("x", top_k=1)[0].page == 1


def test_a_revision_is_stored(tmp_path, models, monkeypatch):
    model = models["colpali"]
    monkeypatch.setattr(model, "name", "owner/model")
    monkeypatch.setattr(model, "load_options", {"revision": "abc"})
    index = Index.create(tmp_path / "my.index", model)
    loads = []

    def load(name, options):
        loads.append((name, options))
        return model

    monkeypatch.setattr("anchorfold.indexes.index_model.load_model", load)
    assert Index.open(index.path, device="cpu").encoder is model
    assert loads == [("owner/model", {"revision": "abc", "device": "cpu"})]


def test_the_path_of_an_encoder_object_is_stored(tmp_path, checkpoints):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    encoder = sentence_transformers.MultiVectorEncoder(str(checkpoints["colpali"]), device="cpu")
    index = Index.create(tmp_path / "my.index", anchorfold.load(encoder, device="cpu"))
    assert index.settings.model == str(checkpoints["colpali"])


def test_a_missing_model_is_one_error_with_its_stored_name(tmp_path, models, monkeypatch):
    model = models["colpali"]
    monkeypatch.setattr(model, "name", str(tmp_path / "gone"))
    Index.create(tmp_path / "my.index", model)
    with pytest.raises(AnchorFoldError, match=r"gone.*--model on the command line"):
        _ = Index.open(tmp_path / "my.index").encoder


def stranger_settings(model, **load_options):
    return IndexSettings(str(model), "0", 16, "full-index", {}, load_options=load_options)


def test_an_index_cannot_let_a_model_run_code(tmp_path):
    pytest.importorskip("sentence_transformers")
    folder, proof = tmp_path / "model", tmp_path / "executed"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "modules.json").write_text(
        json.dumps([{"idx": 0, "name": "0", "path": "", "type": "attack.Attack"}]), encoding="utf-8"
    )
    (folder / "attack.py").write_text(f"open({str(proof)!r}, 'w').close()\nclass Attack: pass\n", encoding="utf-8")
    settings = stranger_settings(folder, trust_remote_code=True)
    with pytest.raises(AnchorFoldError, match="trust_remote_code"):
        _ = IndexModel(tmp_path, settings, None, {}).encoder
    assert not proof.exists()
    with pytest.raises(AttributeError):  # the caller may allow it
        _ = IndexModel(tmp_path, settings, None, {"trust_remote_code": True}).encoder
    assert proof.exists()


def test_only_options_that_select_weights_come_from_the_index(tmp_path, models, monkeypatch):
    loads = []

    def load(name, options):
        loads.append(options)
        return models["colpali"]

    monkeypatch.setattr("anchorfold.indexes.index_model.load_model", load)
    safe = {"revision": "abc", "bidirectional": True, "merge_adapters": False}
    unsafe = {"trust_remote_code": True, "allow_pickle": True, "device": "cpu", "settings": "/etc/passwd"}
    model = IndexModel(tmp_path, stranger_settings("owner/model", **safe, **unsafe), None, {"allow_pickle": False})
    with pytest.raises(AnchorFoldError, match="another model"):
        _ = model.encoder
    assert loads == [{**safe, "allow_pickle": False}]


def test_allow_pickle_is_not_stored(tmp_path, checkpoints):
    model = anchorfold.load(checkpoints["colpali"], device="cpu", allow_pickle=True)
    assert Index.create(tmp_path / "my.index", model).settings.load_options == {}
