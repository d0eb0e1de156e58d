"""Each backbone, from a tiny checkpoint of its true class on disk, through `anchorfold.load`."""

import logging
import warnings

import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize

import anchorfold
from anchorfold.attention.layer_settings import LayerSettings, write_settings
from anchorfold.attention.signals import PropagatedAttention
from anchorfold.core.budget import vector_budget
from tests.conftest import KINDS


def own_output(model, images):
    """What the model itself returns for each page's visual tokens."""
    with torch.no_grad():
        batch = model.prepare_pages(images)
        out = model.model(**batch.inputs)
        vectors = out if isinstance(out, torch.Tensor) else out.embeddings
        return [v[mask] for v, mask in zip(vectors, batch.visual, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
class TestEveryBackbone:
    def test_none_equals_the_models_own_vectors(self, models, images, kind):
        pages = models[kind].encode_documents(images, anchorfold.FullIndex(), batch_size=len(images))
        for page, expected in zip(pages, own_output(models[kind], images), strict=True):
            torch.testing.assert_close(page.vectors, expected, atol=1e-5, rtol=0)

    def test_visual_tokens_fill_the_grid(self, models, images, kind):
        batch = models[kind].prepare_pages(images)
        pages = models[kind].encode_documents(images)
        for visual, page in zip(batch.visual, pages, strict=True):
            assert int(visual.sum()) == len(page) == page.full == len(page.grid) > 0
            assert page.grid.boxes().min() >= 0
            assert page.grid.boxes().max() <= 1

    def test_hidden_states_are_those_before_the_projection(self, models, images, kind):
        for state in models[kind].page_states(images[:2]):
            width = models[kind].attention_layers[0].config.hidden_size
            assert state.hidden.shape[1] == width
            torch.testing.assert_close(state.embeddings, normalize(models[kind].project(state.hidden), dim=-1))

    def test_windows_are_respected(self, models, images, kind):
        model = models[kind]
        compressor = anchorfold.AnchorFold(ratio=0.2, window=(1, 3), steps=2)
        signals = compressor.signals(model.layer_settings)
        assert signals == [PropagatedAttention(1, 2), PropagatedAttention(2, 2), PropagatedAttention(3, 2)]
        (state,) = model.page_states(images[:1], signals)
        assert list(state.signals) == signals

    def test_the_snippet(self, models, images, kind):
        model = models[kind]
        pages = model.encode_documents(images, anchorfold.AnchorFold(ratio=0.1))
        queries = model.encode_queries(["net revenue by region", "page 3"])
        scores = anchorfold.maxsim(queries, pages)
        assert scores.shape == (2, len(images))
        assert torch.isfinite(scores).all()
        for page in pages:
            assert len(page) == vector_budget(page.full, ratio=0.1)
            assert page.groups.shape == (page.full,)

    def test_queries_are_unit_vectors_and_batches_do_not_change_them(self, models, kind):
        texts = ["net revenue by region", "a", "the table page 1 2 3"]
        together = models[kind].encode_queries(texts)
        for text, vectors in zip(texts, together, strict=True):
            torch.testing.assert_close(vectors.norm(dim=1), torch.ones(len(vectors)))
            torch.testing.assert_close(vectors, models[kind].encode_queries([text])[0], atol=1e-5, rtol=0)

    def test_every_compressor_runs(self, models, images, kind):
        model = models[kind]
        for name in set(anchorfold.compressors.compressor_names()) - {"agc"}:  # requires universal tokens
            compressor = anchorfold.compressors.compressor(name, **({} if name == "none" else {"ratio": 0.3}))
            if name == "docpruner":
                compressor.calibrate_on(model, images)
            for page in model.encode_documents(images, compressor):
                if name == "docpruner":  # as many as lie above its threshold
                    assert 1 <= len(page) <= page.full
                else:
                    ratio = 1 if name == "none" else 0.3
                    assert len(page) == vector_budget(page.full, ratio=ratio)

    def test_paths_and_modes_of_images(self, models, images, kind, tmp_path):
        images[0].save(tmp_path / "page.png")
        from_path = models[kind].encode_documents([tmp_path / "page.png"])[0]
        torch.testing.assert_close(from_path.vectors, models[kind].encode_documents([images[0]])[0].vectors)
        assert len(models[kind].encode_documents([Image.new("L", (80, 120), 200), Image.new("RGBA", (80, 120))])) == 2


class TestGrids:
    def test_dynamic_grids_keep_the_pages_shape(self, models, images):
        for kind in ("colqwen2", "colqwen2.5"):
            tall, wide = (models[kind].encode_documents([images[i]])[0].grid.tiles[0] for i in (3, 1))
            assert tall.rows > tall.columns
            assert wide.columns > wide.rows

    def test_tiles_and_thumbnail(self, models, images):
        for kind in ("colmodernvbert", "nemotron"):
            grid = models[kind].encode_documents([images[1]])[0].grid
            assert len(grid.tiles) > 2
            last = grid.tiles[-1]
            assert (last.left, last.top, last.right, last.bottom) == (0, 0, 1, 1)
            assert grid.tiles[0].right < 1


class TestCausality:
    def test_measured_by_perturbation(self, models):
        assert {kind: models[kind].is_causal for kind in KINDS} == {
            "colpali": False, "colqwen2": True, "colqwen2-engine": True, "colqwen2.5": False, "colqwen3": True,
            "colqwen3.5": True, "colvec": False, "colgemma3": False, "colmodernvbert": False, "nemotron": False,
            "nemotron-qwen3": False,
        }  # fmt: skip

    def test_warns_once_when_a_compressor_reads_attention(self, checkpoints, images):
        model = anchorfold.load(checkpoints["colqwen2"])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.encode_documents(images[:1])
            assert caught == []
            model.encode_documents(images[:1], anchorfold.AnchorFold(ratio=0.5, graph="mirrored-symmetric"))
            assert caught == []
            list(model.page_states(images[:1], [PropagatedAttention(1)]))
            for _ in range(2):
                model.encode_documents(images[:1], anchorfold.AnchorFold(ratio=0.5))
        (warning,) = caught
        assert warning.category is anchorfold.errors.CausalBackboneWarning
        assert "cannot attend to later ones" in str(warning.message)

    def test_colqwen25_causal_or_not(self, checkpoints, tmp_path):
        import json
        import shutil

        folder = shutil.copytree(checkpoints["colqwen2.5"], tmp_path / "causal")
        config = json.loads((folder / "config.json").read_text())
        config["text_config"].pop("is_causal")
        (folder / "config.json").write_text(json.dumps(config))
        assert anchorfold.load(folder).is_causal
        assert not anchorfold.load(folder, bidirectional=True).is_causal
        assert not anchorfold.load(checkpoints["colqwen2.5"]).is_causal


class TestLoading:
    def test_a_wrong_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="no model folder"):
            anchorfold.load(tmp_path / "missing")
        with pytest.raises(FileNotFoundError, match="no config"):
            anchorfold.load(tmp_path)
        with pytest.raises(FileNotFoundError, match="hub name such as owner/model"):
            anchorfold.load("not-a-model")

    def test_a_folder_of_its_name_does_not_hide_nano(self, tmp_path, monkeypatch):
        (tmp_path / "nano").mkdir()
        monkeypatch.chdir(tmp_path)
        assert anchorfold.load("nano").name == "nano"
        with pytest.raises(FileNotFoundError, match=r"nano has no config\.json"):
            anchorfold.load("./nano")

    def test_no_network(self, monkeypatch):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(ConnectionError, match=r"cannot reach the model hub .*local cache: connect to the network"):
            anchorfold.load("vidore/colpali-v1.3-hf")
        with pytest.raises(ConnectionError, match=r"local cache: did you mean vidore/colpali-v1.3"):
            anchorfold.load("vidore/colpali-v1.4")

    def test_an_unreachable_hub_is_one_error(self, monkeypatch):
        """Neither a line per retry, nor the same wait for every file."""
        records: list[logging.LogRecord] = []
        waits: list[float] = []
        handler = logging.Handler()
        monkeypatch.setattr(handler, "emit", records.append)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", waits.append)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}")
        logger = logging.getLogger("huggingface_hub")
        logger.addHandler(handler)
        try:
            with pytest.raises(ConnectionError, match="cannot reach the model hub"):
                anchorfold.load("owner/never-cached")
        finally:
            logger.removeHandler(handler)
        assert records == []
        assert 0 < len(waits) <= 5  # those of one file

    @pytest.mark.parametrize(
        ("written", "meant"),
        [
            ("colpali", "vidore/colpali-v1.3-hf"), ("ColQwen2.5", "vidore/colqwen2.5-v0.2"), ("nan0", "nano"),
            ("colmodernbert", "ModernVBERT/colmodernvbert"),
        ],
    )  # fmt: skip
    def test_a_wrong_name_gets_a_suggestion(self, written, meant):
        with pytest.raises(FileNotFoundError, match=f"no model folder '{written}': did you mean {meant}"):
            anchorfold.load(written)

    def test_missing_extras_name_the_install(self, checkpoints, tmp_path, monkeypatch):
        import sys

        (tmp_path / "config.json").write_text('{"model_type": "bert"}')
        monkeypatch.setitem(sys.modules, "sentence_transformers", None)
        with pytest.raises(ImportError, match=r"anchorfold\[multivector\]"):
            anchorfold.load(tmp_path)

    def test_uncalibrated_backbones_warn(self, checkpoints):
        with pytest.warns(anchorfold.errors.UncalibratedWarning, match="anchorfold calibrate"):
            anchorfold.load(checkpoints["colpali"])

    def test_a_calibration_file_in_the_folder_is_used(self, checkpoints, tmp_path):
        import shutil

        folder = shutil.copytree(checkpoints["colpali"], tmp_path / "calibrated")
        write_settings(folder / "anchorfold.json", LayerSettings((1, 2), (0, 1), 6, steps=3))
        model = anchorfold.load(folder)
        assert (model.layer_settings.window, model.layer_settings.steps) == ((1, 2), 3)

    def test_dtype_and_device(self, checkpoints):
        model = anchorfold.load(checkpoints["colpali"], device="cpu", dtype=torch.float64)
        assert model.model.dtype == torch.float64
        assert model.device == torch.device("cpu")

    def test_text_for_queries_must_be_a_list(self, models):
        with pytest.raises(TypeError, match="list of texts"):
            models["colpali"].encode_queries("net revenue")
