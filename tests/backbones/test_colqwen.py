"""The ColQwen family: layouts of checkpoints, prompts, image processors and limits, all read from the checkpoint."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import Qwen3VLModel

import anchorfold
from anchorfold.backbones.checkpoint import Checkpoint
from anchorfold.backbones.colqwen import IMAGE_PROCESSORS, ColQwen, load_image_processor
from anchorfold.backbones.colqwen_layouts import LAYOUTS
from anchorfold.errors import CheckpointError

PROMPT = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"


@pytest.fixture
def rewrite(checkpoints, tmp_path):
    """A copy of a checkpoint with other names of weights, and with changes to its JSON files."""

    def write(kind, rename=lambda key: key, **files):
        folder = shutil.copytree(checkpoints[kind], tmp_path / "copy")
        weights = {rename(key): weight for key, weight in load_file(folder / "model.safetensors").items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        for name, change in files.items():
            path = folder / f"{name}.json"
            path.write_text(json.dumps(change(json.loads(path.read_text()))))
        return folder

    return write


def vectors(model, images):
    return model.encode_documents(images[:2], anchorfold.AnchorFold(ratio=0.5))[1].vectors


class TestLayouts:
    def test_what_colpali_engine_published(self):
        published = {
            "qwen2_vl": (768, "Query: a" + "<|endoftext|>" * 10),
            "qwen2_5_vl": (768, "Query: a" + "<|endoftext|>" * 10),
            "qwen3_vl": (768, "a" + "<|endoftext|>" * 10),
            "colqwen3": (1280, "a" + "<|endoftext|>" * 10),
        }
        for model_type, (tokens, query) in published.items():
            layout = LAYOUTS[model_type]
            assert (layout.visual_tokens, layout.query_prompt.replace("{text}", "a")) == (tokens, query)
            assert layout.page_prompt == PROMPT

    @pytest.mark.parametrize("kind", ["colqwen2-engine", "colqwen2.5"])
    def test_names_from_before_transformers_4_52(self, rewrite, models, images, kind):
        folder = rewrite(kind, lambda key: key.replace("language_model.", "model."))
        assert torch.equal(vectors(anchorfold.load(folder), images), vectors(models[kind], images))

    @pytest.mark.parametrize("kind", ["colqwen2.5", "colqwen3"])
    def test_names_below_model(self, rewrite, models, images, kind):
        folder = rewrite(kind, lambda key: key if key.startswith("custom") else f"model.{key}")
        assert torch.equal(vectors(anchorfold.load(folder), images), vectors(models[kind], images))

    def test_tomoro(self, rewrite, models, images):
        def rename(key):
            if key.startswith("custom_text_proj"):
                return key.replace("custom_text_proj", "embedding_proj_layer")
            return f"vlm.model.{key}"

        def configure(config):
            dimension = config.pop("embedding_dim")
            return {**config, "model_type": "colqwen3", "embed_dim": dimension, "auto_map": {"AutoModel": "x.ColQwen3"}}

        model = anchorfold.load(rewrite("colqwen3", rename, config=configure))
        assert model.family == "colqwen3"
        assert torch.equal(vectors(model, images), vectors(models["colqwen3"], images))
        assert torch.equal(*(m.encode_queries(["net revenue"])[0] for m in (model, models["colqwen3"])))

    @pytest.mark.parametrize("key", ["dim", "embed_dim", "embedding_dim"])
    def test_the_dimension_is_in_the_config(self, rewrite, key):
        def configure(config):
            return {key: config.pop("embedding_dim"), **config}

        assert anchorfold.load(rewrite("colqwen3", config=configure)).dim == 16

    def test_the_dimension_is_not_in_the_config(self, rewrite):
        """colpali-engine does not save it: then it is what its class has, 320 for ColQwen3."""
        folder = rewrite("colqwen3", config=lambda c: {k: v for k, v in c.items() if k != "embedding_dim"})
        with pytest.raises(CheckpointError, match=r"custom_text_proj.bias \[16\] for \[320\]"):
            anchorfold.load(folder)

    def test_causal_or_not(self, checkpoints, images):
        with pytest.warns(anchorfold.errors.CausalBackboneWarning, match="cannot attend to later ones"):
            causal = vectors(anchorfold.load(checkpoints["colqwen3"]), images)
        free = anchorfold.load(checkpoints["colqwen3"], bidirectional=True)
        assert not free.is_causal
        assert not torch.allclose(vectors(free, images), causal, atol=1e-3)

    def test_the_grid_reaches_the_positions(self, models):
        """A page of 2 x 8 patches is not one of 8 x 2, even if all patches are alike."""
        model = models["colqwen3"]
        wide, tall = (model.encode_documents([Image.new("RGB", size, "gray")])[0] for size in ((256, 64), (64, 256)))
        assert len(wide) == len(tall) == 16
        assert not torch.allclose(wide.vectors, tall.vectors, atol=1e-4)


class TestNemotron:
    """Nemotron ColEmbed 4B and 8B: Qwen3-VL, the last layer's states before the final norm, no causal mask."""

    def test_states_are_those_before_the_norm(self, checkpoints, models, images):
        model = models["nemotron-qwen3"]
        batch = model.prepare_pages(images[:2])
        config = json.loads((checkpoints["nemotron-qwen3"] / "config.json").read_text())
        config = Qwen3VLModel.config_class.from_dict({**config, "model_type": "qwen3_vl"})
        config.text_config.is_causal = False
        plain = Qwen3VLModel.from_pretrained(checkpoints["nemotron-qwen3"], config=config).eval()
        for layer in plain.language_model.layers:
            layer.self_attn.is_causal = False
        caught = []
        plain.language_model.norm.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
        with torch.no_grad():
            plain(**batch.inputs)
        valid = batch.attention_mask.bool()
        torch.testing.assert_close(model._hidden(batch.inputs)[valid], caught[0][valid])
        assert model.dim == config.text_config.hidden_size

    def test_prompts(self, models):
        layout = models["nemotron-qwen3"].layout
        assert layout.page_prompt == (
            "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>passage: <|im_end|>\n<|im_start|>assistant\n"
        )
        assert layout.query_prompt == "<|im_start|>user\nQuery: query: {text}<|im_end|>\n<|im_start|>assistant\n"
        assert layout.query_length == 512

    def test_prompts_of_its_processor(self, checkpoints, tmp_path):
        folder = shutil.copytree(checkpoints["nemotron-qwen3"], tmp_path / "copy")
        processor_config = {"query_prefix": "ask:", "passage_prefix": "", "q_max_length": 12}
        (folder / "processor_config.json").write_text(json.dumps(processor_config))
        model = anchorfold.load(folder)
        assert isinstance(model, ColQwen)
        assert "Query: ask: {text}" in model.layout.query_prompt
        assert "passage" not in model.layout.page_prompt
        assert len(model.encode_queries(["net " * 50])[0]) == 12

    def test_without_a_template(self, checkpoints, tmp_path):
        folder = shutil.copytree(checkpoints["nemotron-qwen3"], tmp_path / "copy")
        (folder / "chat_template.jinja").unlink()
        with pytest.raises(CheckpointError, match=r"has none: add its chat_template.jinja"):
            anchorfold.load(folder)

    def test_it_is_never_causal(self, checkpoints):
        with pytest.raises(ValueError, match="trained without a causal mask"):
            anchorfold.load(checkpoints["nemotron-qwen3"], bidirectional=False)


class TestImageProcessor:
    @pytest.fixture
    def declare(self, tmp_path):
        """A checkpoint that says nothing but how its pages are cut."""

        def write(**declared):
            (tmp_path / "preprocessor_config.json").write_text(json.dumps(declared))
            return [Checkpoint(str(tmp_path), torch.device("cpu"), torch.float32)]

        return write

    @pytest.mark.parametrize("spelling", sorted(IMAGE_PROCESSORS))
    def test_every_spelling(self, rewrite, models, images, spelling):
        folder = rewrite("colqwen2.5", preprocessor_config=lambda c: {**c, "image_processor_type": spelling})
        batch, expected = (m.prepare_pages(images) for m in (anchorfold.load(folder), models["colqwen2.5"]))
        assert torch.equal(batch.inputs["pixel_values"], expected.inputs["pixel_values"])

    def test_all_are_known(self):
        assert {"Qwen2VLImageProcessor", "Qwen2VLImageProcessorFast", "Qwen2VLImageProcessorPil"} < IMAGE_PROCESSORS
        assert {"Qwen2_5_VLImageProcessor", "Qwen2_5_VLImageProcessorFast"} < IMAGE_PROCESSORS

    def test_inside_of_the_processors_file(self, declare, tmp_path):
        sources = declare()
        (tmp_path / "preprocessor_config.json").unlink()
        inner = {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "size": {"longest_edge": 65536}}
        (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": inner}))
        processor = load_image_processor(sources, 768)
        assert (processor.patch_size, processor.size["longest_edge"]) == (16, 65536)

    @pytest.mark.parametrize(
        "limits",
        [
            {"min_pixels": 3136, "max_pixels": 12845056},  # 4.49
            {"min_pixels": 3136, "max_pixels": 12845056, "size": {"min_pixels": 3136, "max_pixels": 12845056}},
            {"size": {"shortest_edge": 3136, "longest_edge": 12845056}, "min_pixels": None, "max_pixels": None},
            {"size": {"shortest_edge": 3136, "longest_edge": 12845056}},  # 5.x
        ],
    )
    def test_768_tokens_on_a_large_page(self, declare, limits):
        """Qwen publishes a limit of 16,384 tokens per page; a ColQwen2.5 was trained with 768."""
        sources = declare(image_processor_type="Qwen2_5_VLImageProcessor", patch_size=14, merge_size=2, **limits)
        page = Image.fromarray(np.random.default_rng(0).integers(0, 255, (2200, 1700, 3), dtype=np.uint8))

        def tokens(limit):
            grid = load_image_processor(sources, limit)(images=[page], return_tensors="pt")["image_grid_thw"]
            return int(grid.prod()) // 4

        assert tokens(None) > 4700
        assert 700 < tokens(LAYOUTS["qwen2_5_vl"].visual_tokens) <= 768

    def test_a_checkpoints_own_limit_stays(self, declare):
        processor = load_image_processor(declare(max_pixels=100 * 28 * 28), 768)
        assert processor.size["longest_edge"] == 100 * 28 * 28

    def test_another_class(self, declare):
        with pytest.raises(
            CheckpointError, match=r"image processor 'SiglipImageProcessor', which is not one of Qwen2VL"
        ):
            load_image_processor(declare(image_processor_type="SiglipImageProcessor"), 768)

    def test_none(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"add its preprocessor_config.json"):
            load_image_processor([Checkpoint(str(tmp_path), torch.device("cpu"), torch.float32)], 768)
