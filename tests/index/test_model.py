"""An index stores what is needed to load its model again."""

import json
import shutil

import pytest

import anchorfold
from anchorfold import Index
from anchorfold.backbones.base import Retriever
from anchorfold.errors import AnchorFoldError
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
    assert isinstance(again.model, Retriever)
    assert not again.model.is_causal
    assert again.search("x", top=1)[0].page == 1


def test_a_revision_is_stored(tmp_path, models, monkeypatch):
    model = models["colpali"]
    monkeypatch.setattr(model, "name", "owner/model")
    monkeypatch.setattr(model, "load_options", {"revision": "abc"})
    index = Index.create(tmp_path / "my.index", model)
    loads = []

    def load(name, options):
        loads.append((name, options))
        return model

    monkeypatch.setattr("anchorfold.index.model.load_model", load)
    assert Index.open(index.path, device="cpu").model is model
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
        _ = Index.open(tmp_path / "my.index").model
