"""Families added by data: reference classes, names of weights, layers, truncated dimensions."""

import json
import shutil
import warnings

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize
from transformers import Gemma3Model, Qwen3_5Model

import anchorfold
from anchorfold.attention.layer_settings import default_settings
from anchorfold.attention.signals import PropagatedAttention
from anchorfold.backbones.catalogue import KNOWN
from anchorfold.backbones.colqwen import ColQwen
from anchorfold.backbones.colqwen_layouts import LAYOUTS, find_layout
from anchorfold.core.focus import centrality, visual_graph
from anchorfold.errors import AssumedLayoutWarning, CheckpointError, MismatchError, UntrainedDimensionsWarning
from anchorfold.explanation import explain
from anchorfold.testing import tiny


@pytest.fixture
def copy(checkpoints, tmp_path):
    """A copy of a checkpoint with changes to its configuration and other names of weights."""

    def write(kind, rename=lambda key: key, name="copy", **config):
        folder = shutil.copytree(checkpoints[kind], tmp_path / name)
        weights = {rename(key): weight for key, weight in load_file(folder / "model.safetensors").items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        written = json.loads((folder / "config.json").read_text()) | config
        (folder / "config.json").write_text(json.dumps({k: v for k, v in written.items() if v is not None}))
        return folder

    return write


def reference_vectors(model_class, folder, inputs, causal=True):
    """Vectors of the class in transformers and the projection in the file, as colpali-engine computes them."""
    weights = load_file(folder / "model.safetensors")
    config = model_class.config_class.from_pretrained(folder)
    config.text_config.is_causal = causal
    plain = model_class.from_pretrained(folder, config=config).eval()
    for layer in plain.language_model.layers:
        if hasattr(layer, "self_attn") and not causal:
            layer.self_attn.is_causal = False
    with torch.no_grad():
        hidden = plain(**inputs, use_cache=False).last_hidden_state
    return normalize(hidden @ weights["custom_text_proj.weight"].T + weights["custom_text_proj.bias"], dim=-1)


@pytest.mark.parametrize("kind", ["colqwen3.5", "colvec", "colgemma3"])
def test_signals_equal_eager_attention(models, images, kind):
    model = models[kind]
    batch = model.prepare_pages(images[:2])
    caught, handles = [], []
    for layer in model.attention_layers:
        handles.append(layer.register_forward_hook(lambda _, args, out: caught.append(out[1])))
    before = model.model.config._attn_implementation
    try:
        model.model.set_attn_implementation("eager")
        with torch.no_grad():
            model.model(**batch.inputs)
    finally:
        model.model.set_attn_implementation(before)
        for handle in handles:
            handle.remove()
    assert len(caught) == model.layer_settings.layers
    signals = [PropagatedAttention(layer, 3) for layer in range(len(caught))]
    for b, state in enumerate(model.page_states(images[:2], signals, batch_size=2)):
        for layer, signal in enumerate(signals):
            expected = centrality([visual_graph(caught[layer][b], batch.visual[b])], 3)
            torch.testing.assert_close(state.signals[signal], expected, atol=1e-5, rtol=1e-4)


class TestQwen35:
    @pytest.mark.parametrize(("kind", "causal"), [("colqwen3.5", True), ("colvec", False)])
    def test_equals_the_reference_class(self, checkpoints, models, images, kind, causal):
        model = models[kind]
        batch = model.prepare_pages(images[:2])
        expected = reference_vectors(Qwen3_5Model, checkpoints[kind], batch.inputs, causal)
        for page, vectors, visual in zip(model.encode_documents(images[:2]), expected, batch.visual, strict=True):
            torch.testing.assert_close(page.vectors, vectors[visual], atol=1e-5, rtol=0)
        inputs, mask = model.prepare_queries(["net revenue", "a"])
        expected = reference_vectors(Qwen3_5Model, checkpoints[kind], inputs, causal)
        for query, vectors, scored in zip(model.encode_queries(["net revenue", "a"]), expected, mask, strict=True):
            torch.testing.assert_close(query, vectors[scored.bool()], atol=1e-5, rtol=0)

    def test_only_layers_with_full_attention_are_read(self, models):
        model = models["colvec"]
        types = model.model.config.text_config.layer_types
        assert [m.layer_idx for m in model.attention_layers] == [i for i, t in enumerate(types) if t[0] == "f"]
        assert model.layer_settings.layers == len(model.attention_layers) == 4
        published = default_settings("colqwen3.5", 8)  # 32 layers, a quarter of them with full attention
        assert published.window == (5, 6)

    def test_webai(self, copy, models, images):
        """`vlm.` before the names, 640 dimensions as `embed_dim`, the mask declared at the top of the configuration."""
        folder = copy(
            "colvec", lambda key: key if key.startswith("custom") else f"vlm.model.{key}",
            model_type="colqwen3_5", embed_dim=16, embedding_dim=None, is_causal=False,
        )  # fmt: skip
        config = json.loads((folder / "config.json").read_text())
        del config["text_config"]["is_causal"]
        (folder / "config.json").write_text(json.dumps(config))
        with pytest.warns(AssumedLayoutWarning, match="prompts are assumed"):
            model = anchorfold.load(folder)
        assert not model.is_causal
        pages = (m.encode_documents(images[:1])[0].vectors for m in (model, models["colvec"]))
        assert torch.equal(*pages)
        assert LAYOUTS["colqwen3_5"].visual_tokens == 1792

    def test_evie(self, copy, models, images):
        """One projection for several dimensions; its configuration does not declare the mask."""
        folder = copy("colqwen3.5", embedding_dim=None, dim=16, embed_dim=8, head_dims=[8, 16], mrl_prefix=True)
        assert anchorfold.load(folder).is_causal
        model = anchorfold.load(folder, bidirectional=True, dim=8)
        assert not model.is_causal
        assert [known.needs_option for known in KNOWN if "EVIE" in known.name] == [True, True]


class TestColGemma3:
    def test_equals_the_reference_class(self, checkpoints, models, images):
        model = models["colgemma3"]
        batch = model.prepare_pages(images[:2])
        expected = reference_vectors(Gemma3Model, checkpoints["colgemma3"], batch.inputs)
        for page, vectors, visual in zip(model.encode_documents(images[:2]), expected, batch.visual, strict=True):
            torch.testing.assert_close(page.vectors, vectors[visual], atol=1e-5, rtol=0)

    def test_prompts(self, models, images):
        model = models["colgemma3"]
        assert model.tokenizer.padding_side == "left"
        text = model.tokenizer.decode(model.prepare_queries(["net revenue"])[0]["input_ids"][0])
        assert "user" in text
        assert "net revenue" in text
        types = model.prepare_pages(images[:1])
        assert torch.equal(types.inputs["token_type_ids"].bool(), types.visual)

    def test_without_its_projection(self, copy):
        folder = copy("colgemma3", lambda key: key.replace("custom_text_proj", "lm_head.x"))
        with pytest.raises(CheckpointError, match="2 weights missing"):
            anchorfold.load(folder)


class TestColUltraVBert:
    """Loaded through sentence-transformers, with tiles and positions as for our own backbones."""

    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory):
        pytest.importorskip("sentence_transformers")
        if not hasattr(transformers, "UltraVBertModel"):
            pytest.skip("this version of transformers has no UltraVBERT")
        return tiny.make("colultravbert", tmp_path_factory.mktemp("ultravbert") / "checkpoint")

    @pytest.fixture(scope="class")
    def model(self, folder):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return anchorfold.load(folder)

    def test_equals_the_reference_class(self, folder, model, images):
        (dense,) = [module for module in model.encoder if type(module).__name__ == "Dense"]
        plain = transformers.UltraVBertModel.from_pretrained(folder).eval()
        for page, image in zip(model.encode_documents(images[:2], batch_size=2), images[:2], strict=True):
            batch = model.prepare_pages([image])
            names = ("input_ids", "attention_mask", "pixel_values", "pixel_attention_mask")
            with torch.no_grad():
                hidden = plain(**{n: batch.inputs[n] for n in names if n in batch.inputs}).last_hidden_state[0]
                expected = normalize(dense.linear(hidden[batch.visual[0]]), dim=-1)
            torch.testing.assert_close(page.vectors, expected, atol=1e-5, rtol=0)

    def test_grids_and_attention(self, model, images):
        assert not model.is_causal
        (page,) = model.encode_documents(images[:1], anchorfold.AnchorFold(ratio=0.5))
        assert len(page.grid) == page.full == 20
        assert page.grid.tiles[-1].right == 1
        assert len(page) == 10

    def test_a_missing_weight(self, folder, tmp_path):
        shutil.copytree(folder, tmp_path / "copy")
        weights = load_file(tmp_path / "copy" / "model.safetensors")
        fewer = {key: weight for key, weight in weights.items() if "connector" not in key}
        assert len(fewer) < len(weights)
        save_file(fewer, tmp_path / "copy" / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(CheckpointError, match=r"weights? missing \(connector"):
            anchorfold.load(tmp_path / "copy")


class TestSharedLayouts:
    def test_sauerkraut(self, copy, models):
        folder = copy("colqwen3", name="SauerkrautLM-ColQwen3-2b-v0.1")
        model = anchorfold.load(folder)
        assert isinstance(model, ColQwen)
        assert model.layout.query_prompt.startswith("Query: ")
        assert isinstance(models["colqwen3"], ColQwen)
        assert models["colqwen3"].layout.query_prompt.startswith("{text}")
        assert find_layout("VAGOsolutions/SauerkrautLM-ColQwen3-8b-v0.1", "colqwen3") is model.layout

    def test_ops_colqwen3(self, copy, models, images):
        """The same weights under another `model_type`; its mask is causal, so its longer prompt does not matter."""
        folder = copy("colqwen3", name="ops", model_type="ops_colqwen3", dims=16, embedding_dim=None)
        with pytest.warns(AssumedLayoutWarning, match="prompts are those of public ports"):
            model = anchorfold.load(folder)
        assert isinstance(model, ColQwen)
        assert model.dim == 16
        assert model.is_causal
        assert torch.equal(*(m.encode_documents(images[:1])[0].vectors for m in (model, models["colqwen3"])))
        assert model.layout.query_prompt == "Query: {text}" + 10 * "<|endoftext|>"
        assert model.layout.page_prompt.endswith("image.<|im_end|><|im_start|>assistant\n<|endoftext|>")

    def test_nemoretriever_v1(self, copy, models, images):
        names = {"model_type": "llama_nemoretrievercolembed", "architectures": ["llama_NemoRetrieverColEmbed"]}
        model = anchorfold.load(copy("nemotron", **names))
        assert torch.equal(*(m.encode_documents(images[:1])[0].vectors for m in (model, models["nemotron"])))
        with pytest.raises(CheckpointError, match="add max_input_tiles to its config"):
            anchorfold.load(copy("nemotron", name="untold", **names, max_input_tiles=None))


class TestTruncatedDimensions:
    def test_vectors_are_leading_components(self, checkpoints, models, images):
        for kind in ("colqwen3", "colgemma3"):
            with pytest.warns(UntrainedDimensionsWarning, match="not known to have been trained"):
                model = anchorfold.load(checkpoints[kind], dim=5)
            assert model.dim == 5
            assert model.fingerprint != models[kind].fingerprint
            full, small = (m.encode_documents(images[:1])[0].vectors for m in (models[kind], model))
            torch.testing.assert_close(small, normalize(full[:, :5], dim=-1))
            full, small = (m.encode_queries(["net revenue"])[0] for m in (models[kind], model))
            torch.testing.assert_close(small, normalize(full[:, :5], dim=-1))

    def test_known_dimensions_do_not_warn(self, copy, recwarn):
        folder = copy("colqwen3.5", head_dims=[8, 16], mrl_prefix=True)
        assert anchorfold.load(folder, dim=8).dim == 8
        assert not [w for w in recwarn if w.category is UntrainedDimensionsWarning]

    def test_invalid_dimensions(self, checkpoints):
        for dim in (0, 17):
            with pytest.raises(ValueError, match=f"must be between 1 and the 16 dimensions of .*, got {dim}"):
                anchorfold.load(checkpoints["colqwen3"], dim=dim)
        with pytest.raises(ValueError, match="vectors of nano cannot be truncated"):
            anchorfold.load("nano", dim=64)

    @pytest.mark.filterwarnings("ignore")
    def test_an_index_stores_them(self, checkpoints, images, tmp_path):
        (tmp_path / "pages").mkdir()
        images[0].save(tmp_path / "pages" / "a.png")
        index = anchorfold.Index.create(tmp_path / "i", str(checkpoints["colgemma3"]), dim=5)
        index.add(tmp_path / "pages")
        again = anchorfold.Index.open(tmp_path / "i")
        assert again.encoder.dim == 5
        (hit,) = again.search("net revenue", top_k=1)
        assert hit.document.endswith("a.png")
        assert explain(again, "net revenue", hit.document, hit.page, compare_full=False).image is not None
        with pytest.raises(MismatchError, match="vectors of 5 dimensions, not of 8"):
            anchorfold.Index.open_or_create(tmp_path / "i", dim=8)
