"""Nemotron ColEmbed against what the public reference computes, and from every kind of checkpoint folder."""

import json
import shutil
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize
from transformers.models.siglip.modeling_siglip import SiglipMultiheadAttentionPoolingHead

import anchorfold
from anchorfold.backbones.nemotron import NemotronColEmbed, choose_tiling, cut_tiles, pixel_values
from anchorfold.backbones.nemotron_model import NemotronConfig, NemotronModel
from anchorfold.errors import CheckpointError
from anchorfold.page import PatchGrid

GOLDEN = Path(__file__).parent / "golden" / "nemotron"
TILES = (1, 2, 5, 9)


def seeded_weight(name, shape):
    """A weight that only its name decides."""
    noise = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    value = 0.1 * noise + name.endswith("weight") if len(shape) == 1 else 1.5 * noise / np.prod(shape[1:]) ** 0.5
    return torch.from_numpy(value.astype(np.float32))


def noise_tiles(count):
    return torch.from_numpy(np.random.RandomState(100 + count).standard_normal((count, 3, 64, 64)).astype(np.float32))


def noise_page(number, width, height):
    return Image.fromarray(np.random.RandomState(200 + number).randint(0, 256, (height, width, 3)).astype(np.uint8))


@pytest.fixture(scope="module")
def golden():
    return dict(np.load(GOLDEN / "states.npz"))


@pytest.fixture(scope="module")
def twin(tmp_path_factory):
    """The small model of the reference run, from a folder."""
    folder = tmp_path_factory.mktemp("golden")
    for file in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(GOLDEN / file, folder)
    shape = NemotronConfig.from_files("golden", json.loads((folder / "config.json").read_text()), {})
    with torch.device("meta"):
        names = {name: tuple(value.shape) for name, value in NemotronModel(shape).state_dict().items()}
    save_file({name: seeded_weight(name, shape) for name, shape in names.items()}, folder / "model.safetensors")
    with pytest.warns(anchorfold.errors.UncalibratedWarning):
        return anchorfold.load(folder, device="cpu", dtype=torch.float32)


def equal(ours, reference):
    # Values reach 3. Processors without AVX-512 sum in another order: 1e-5 with it, up to 1.6e-5 without.
    torch.testing.assert_close(ours, torch.from_numpy(reference), atol=3e-5, rtol=0)


class TestEqualsTheReference:
    @pytest.mark.parametrize("count", TILES)
    def test_tiles_of_one_page(self, twin, golden, count):
        ids = torch.from_numpy(golden[f"ids_{count}"]).long()[None]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": noise_tiles(count)}
        equal(twin._hidden(inputs)[0], golden[f"single_{count}"])

    def test_tiles_of_a_batch(self, twin, golden):
        prompts = [twin.page_prompt(count) for count in TILES]
        inputs = dict(twin.tokenizer(prompts, return_tensors="pt", padding=True))
        inputs.pop("token_type_ids", None)
        hidden = twin._hidden({**inputs, "pixel_values": torch.cat([noise_tiles(count) for count in TILES])})
        for count, states, mask in zip(TILES, hidden, inputs["attention_mask"].bool(), strict=True):
            assert bool(mask[0]) == (count == max(TILES))  # padding is on the left
            equal(states[mask], golden[f"batched_{count}"])

    def test_whole_pages(self, twin, golden):
        images = [noise_page(i, *size) for i, size in enumerate(golden["page_sizes"].tolist())]
        states = list(twin.page_states(images, batch_size=len(images)))
        assert [len(s.grid.tiles) for s in states] == [golden[f"page_tiles_{i}"] for i in range(len(images))]
        assert {1, 5, 9} <= {len(s.grid.tiles) for s in states}
        for i, state in enumerate(states):
            equal(state.hidden, golden[f"page_{i}"])
            torch.testing.assert_close(state.embeddings, normalize(torch.from_numpy(golden[f"page_{i}"]), dim=-1))

    def test_queries(self, twin, golden):
        vectors = twin.encode_queries(golden["queries"].tolist())
        for i, query in enumerate(vectors):
            equal(query, normalize(torch.from_numpy(golden[f"query_{i}"]), dim=-1).numpy())
        assert len(vectors[2]) == twin.config.q_max_length  # the third was longer

    @pytest.mark.parametrize("most", [8, 6, 2])
    def test_the_tile_rule(self, most):
        table = np.load(GOLDEN / "tilings.npz")
        assert len(table["sizes"]) == 2000
        ours = [choose_tiling(width, height, 512, most) for width, height in table["sizes"].tolist()]
        assert ours == [tuple(shape) for shape in table[f"most_{most}"].tolist()]


class TestPages:
    def test_batches_never_change_a_page(self, twin, golden):
        images = [noise_page(i, *size) for i, size in enumerate(golden["page_sizes"].tolist())]
        alone = twin.encode_documents(images, batch_size=1)
        for size in (2, 5):
            for a, b in zip(alone, twin.encode_documents(images, batch_size=size), strict=True):
                torch.testing.assert_close(a.vectors, b.vectors, atol=1e-5, rtol=0)

    @pytest.mark.parametrize(
        ("size", "across", "down"), [((60, 60), 1, 1), ((100, 50), 2, 1), ((100, 200), 2, 4), ((256, 64), 4, 1)]
    )
    def test_grids(self, twin, size, across, down):
        (encoded,) = twin.encode_documents([noise_page(0, *size)])
        tiles = encoded.grid.tiles
        edges = [(t.left * across, t.top * down, t.right * across, t.bottom * down) for t in tiles[: across * down]]
        assert edges == [(x, y, x + 1, y + 1) for y in range(down) for x in range(across)]
        thumbnails = [(t.left, t.top, t.right, t.bottom) for t in tiles[across * down :]]
        assert thumbnails == [(0, 0, 1, 1)] * (across * down > 1)  # a page in one tile has no thumbnail
        assert {(t.rows, t.columns) for t in tiles} == {(4, 4)}
        assert encoded.full == 16 * len(tiles)

    def test_position_of_a_token_in_the_grid(self, twin):
        """A black mark on the page changes the patches of its own token, in its tile and in the thumbnail."""
        page = Image.new("RGB", (256, 128), "white")
        marked = page.copy()
        marked.paste("black", (176, 16, 192, 32))
        batch = twin.prepare_pages([page, marked])
        with torch.no_grad():
            before, after = map(twin.model.vision_model.embeddings, batch.inputs["pixel_values"].chunk(2))
        # Nine tiles of four by four tokens, each of two by two patches, as pixel shuffle merges them.
        change = (after - before).norm(dim=2).view(9, 4, 2, 4, 2).sum((2, 4)).flatten()
        boxes = batch.grids[1].boxes() * torch.tensor([256, 128, 256, 128])
        in_tiles, in_thumbnail = change[: 8 * 16], change[8 * 16 :]
        assert in_tiles.nonzero().flatten().tolist() == [2 * 16 + 1 * 4 + 3]
        assert boxes[in_tiles.argmax()].tolist() == [176, 16, 192, 32]
        assert boxes[8 * 16 + in_thumbnail.argmax()].tolist() == [128, 0, 192, 32]

    def test_tiles_are_cut_in_reading_order(self):
        page = Image.new("RGB", (64, 32))
        for number, corner in enumerate([(0, 0), (16, 0), (32, 0), (48, 0), (0, 16)]):
            page.paste((number * 40, 0, 0), (*corner, corner[0] + 16, corner[1] + 16))
        tiles = cut_tiles(page, 4, 2, 16, thumbnail=True)
        assert len(tiles) == 9
        assert [np.asarray(tile)[8, 8, 0] for tile in tiles[:5]] == [0, 40, 80, 120, 160]
        assert [tile.size for tile in tiles] == [(16, 16)] * 9

    def test_pixels_reach_from_minus_one_to_one(self):
        black, white = pixel_values([Image.new("RGB", (4, 4)), Image.new("RGB", (4, 4), "white")])
        assert black.unique().tolist() == [-1]
        assert white.unique().tolist() == [1]

    def test_a_wrong_number_of_image_tokens(self, twin):
        batch = twin.prepare_pages([noise_page(0, 60, 60)])
        with pytest.raises(ValueError, match="16 image tokens in the prompt, but 32 tokens"):
            twin.model(**{**batch.inputs, "pixel_values": noise_tiles(2)})

    def test_half_precision(self, checkpoints, images):
        model = anchorfold.load(checkpoints["nemotron"], device="cpu", dtype=torch.bfloat16)
        wide = anchorfold.load(checkpoints["nemotron"], device="cpu", dtype=torch.float32)
        for half, full in zip(model.encode_documents(images), wide.encode_documents(images), strict=True):
            assert half.vectors.dtype == torch.float32
            assert (half.vectors * full.vectors).sum(1).min() > 0.98


def test_the_published_size():
    """SigLIP2-giant, `mlp1` and Llama-3.2-3B with 128,266 tokens, in bfloat16, are the checkpoint's 8,403 MiB."""
    config = {
        "vision_config": {
            "model_type": "siglip_vision_model", "hidden_size": 1536, "intermediate_size": 6144, "image_size": 512,
            "num_hidden_layers": 40, "num_attention_heads": 16, "patch_size": 16,
        },
        "llm_config": {
            "model_type": "llama_bidirec", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
            "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128266,
        },
        "force_image_size": 512, "max_input_tiles": 8, "use_thumbnail": True, "img_context_token_id": 128258,
    }  # fmt: skip
    shape = NemotronConfig.from_files("published", config, {})
    with torch.device("meta"):
        weights = sum(p.numel() for p in NemotronModel(shape).parameters())
        weights += sum(p.numel() for p in SiglipMultiheadAttentionPoolingHead(shape.vision_config).parameters())
    assert round(weights * 2 / 2**20) == 8403
    assert shape.side_tokens**2 == 256


class TestQueries:
    def test_the_words_of_a_query(self, twin):
        explained = twin.explain_query("net revenue by region")
        assert explained.words == ["net", "revenue", "by", "region"]
        assert explained.labels == [None, None, None, 0, 1, 2, 3]  # <s> query : ...

    def test_a_bidirectional_backbone(self, twin):
        assert twin.is_causal is False


def edited(source, target, rename=lambda key: key, **config):
    """A copy of a checkpoint with other key names (None drops a weight) and other configuration values."""
    shutil.copytree(source, target)
    weights = {rename(key): value.clone() for key, value in load_file(source / "model.safetensors").items()}
    weights.pop(None, None)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    values = {**json.loads((source / "config.json").read_text()), **config}
    (target / "config.json").write_text(json.dumps({k: v for k, v in values.items() if v is not None}))
    return target


class TestSpellings:
    @pytest.mark.parametrize(
        "rename",
        [
            lambda key: key.replace("language_model.", "language_model.model."),
            lambda key: key.replace("vision_model.", "vision_model.vision_model."),
            lambda key: "model." + key,
            lambda key: "model." + key.replace("language_model.", "language_model.model.").replace(
                "vision_model.", "vision_model.vision_model."
            ),
        ],
        ids=["language_model.model", "vision_model.vision_model", "model", "all"],
    )  # fmt: skip
    def test_each_gives_the_same_vectors(self, checkpoints, models, images, tmp_path, rename):
        folder = edited(checkpoints["nemotron"], tmp_path / "renamed", rename)
        assert set(load_file(folder / "model.safetensors")) != set(models["nemotron"].model.state_dict())
        model = anchorfold.load(folder, device="cpu")
        assert model.fingerprint == models["nemotron"].fingerprint
        for ours, expected in zip(
            model.encode_documents(images), models["nemotron"].encode_documents(images), strict=True
        ):
            assert torch.equal(ours.vectors, expected.vectors)

    @pytest.mark.parametrize("prefix", ["", "vision_model."])
    def test_heads_that_a_retriever_never_runs(self, checkpoints, models, tmp_path, prefix):
        folder = shutil.copytree(checkpoints["nemotron"], tmp_path / "heads")
        weights = load_file(folder / "model.safetensors")
        weights[f"vision_model.{prefix}head.probe"] = torch.zeros(1, 1, 24)
        weights["language_model.lm_head.weight"] = weights["language_model.embed_tokens.weight"].clone()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        assert anchorfold.load(folder, device="cpu").fingerprint == models["nemotron"].fingerprint

    @pytest.mark.parametrize(
        ("rename", "message"),
        [
            (lambda key: None if key == "mlp1.1.bias" else key, r"1 weight missing \(mlp1\.1\.bias\)"),
            (lambda key: key.replace("mlp1.", "mlp2."), r"6 weights missing \(mlp1.*6 weights unexpected \(mlp2"),
            (lambda key: key.replace("mlp.up_proj.weight", "mlp.fused.fc1_weight"), r"unexpected .*fc1_weight"),
            (lambda key: "score.weight" if key == "mlp1.0.weight" else key, r"unexpected \(score\.weight\)"),
        ],
    )  # fmt: skip
    def test_anything_else_is_refused(self, checkpoints, tmp_path, rename, message):
        folder = edited(checkpoints["nemotron"], tmp_path / "strange", rename)
        with pytest.raises(CheckpointError, match=message):
            anchorfold.load(folder, device="cpu")


class TestConfiguration:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"max_input_tiles": None, "use_thumbnail": None}, "add max_input_tiles and use_thumbnail to its config"),
            ({"vision_config": {"model_type": "radio"}}, "'radio', and only siglip_vision_model"),
            ({"llm_config": {"model_type": "qwen3"}}, "'qwen3', and only Llama"),
            ({"select_layer": -2}, "reads layer -2"),
            ({"ps_version": "v1"}, "version v1"),
            ({"norm_type": "imagenet"}, "'imagenet', and only siglip"),
            ({"force_image_size": 112}, "tiles of 112 pixels are not the 56"),
            ({"downsample_ratio": 0.3333}, "cannot be cut into 3 x 3 patches of 14"),
            ({"img_context_token_id": 3}, "and 6 in its tokenizer"),
            ({"p_max_length": 32}, "a page of 9 tiles takes 4. tokens, and config.json allows 32"),
        ],
    )
    def test_what_would_be_computed_otherwise_is_refused(self, checkpoints, tmp_path, change, message):
        folder = edited(checkpoints["nemotron"], tmp_path / "other", **change)
        with pytest.raises(CheckpointError, match=message):
            anchorfold.load(folder, device="cpu")

    def test_code_and_kernels_that_a_checkpoint_names_are_not_needed(self, checkpoints, models, tmp_path, caplog):
        old = json.loads((checkpoints["nemotron"] / "config.json").read_text())
        kernel = {"attn_implementation": "flash_attention_2", "_attn_implementation_autoset": True}
        folder = edited(
            checkpoints["nemotron"], tmp_path / "release", model_type="llama_nemoretrievercolembed",
            architectures=["llama_NemoRetrieverColEmbed"], auto_map={"AutoModel": "missing.Missing"},
            torch_dtype="bfloat16", llm_config={**old["llm_config"], **kernel, "temperature": 0.02},
            vision_config={**old["vision_config"], **kernel, "vision_use_head": True}, **kernel,
        )  # fmt: skip
        model = anchorfold.load(folder, device="cpu")
        assert model.fingerprint == models["nemotron"].fingerprint
        assert model.attention_layers[0].config._attn_implementation == "sdpa"
        assert not caplog.records

    def test_the_processors_file_wins(self, checkpoints, tmp_path):
        folder = edited(checkpoints["nemotron"], tmp_path / "processor", use_thumbnail=False, max_input_tiles=2)
        settings = {"max_input_tiles": 4, "use_thumbnail": True, "query_prefix": "question:", "image_size": None}
        (folder / "processor_config.json").write_text(json.dumps(settings))
        model = anchorfold.load(folder, device="cpu")
        assert len(model.encode_documents([noise_page(0, 400, 100)])[0].grid.tiles) == 5
        assert isinstance(model, NemotronColEmbed)
        assert model.config.query_prefix == "question:"
        assert model.config.force_image_size == 56

    def test_defaults_of_siglip_that_a_file_leaves_out(self, checkpoints):
        config = json.loads((checkpoints["nemotron"] / "config.json").read_text())
        del config["force_image_size"], config["vision_config"]["patch_size"], config["vision_config"]["image_size"]
        shape = NemotronConfig.from_files("x", config, {})
        assert (shape.force_image_size, shape.side_tokens) == (224, 7)

    def test_without_thumbnail_or_without_tiles(self, checkpoints, tmp_path):
        page = noise_page(0, 200, 100)
        bare = anchorfold.load(edited(checkpoints["nemotron"], tmp_path / "bare", use_thumbnail=False), device="cpu")
        assert len(bare.encode_documents([page])[0].grid.tiles) == 8
        fixed = edited(checkpoints["nemotron"], tmp_path / "fixed", dynamic_image_size=False)
        (encoded,) = anchorfold.load(fixed, device="cpu").encode_documents([page])
        assert encoded.grid == PatchGrid.single(2, 2)
