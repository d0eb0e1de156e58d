"""Nemotron ColEmbed: 512-pixel tiles and a thumbnail, prompts, left padding; hidden states are the embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.base import PageBatch, PromptedEncoder
from anchorfold.backbones.checkpoint import Backbone, Checkpoint
from anchorfold.backbones.nemotron_model import KEY_MAPPING, POOLING_HEAD, NemotronConfig, NemotronModel
from anchorfold.errors import CheckpointError
from anchorfold.page import PatchGrid

IMAGE_TOKEN = "<IMG_CONTEXT>"
PAGE_PROMPT = "{prefix} <img>{image}</img> "
QUERY_PROMPT = "{prefix} {text}"
SUFFICIENT_AREA = 0.6  # tiles with 60 % of the page's pixels are sufficient


class NemotronColEmbed(PromptedEncoder):
    """Nemotron ColEmbed-3B v2: at most 8 tiles and a thumbnail, 256 tokens each, 3,072 dimensions."""

    family = "nemotron"

    def __init__(self, model: NemotronModel, tokenizer: Any, layer_settings: LayerSettings, name: str) -> None:
        super().__init__(model, layer_settings, name)
        self.tokenizer = tokenizer
        self.config = model.config
        self.max_tiles = self.config.max_input_tiles if self.config.dynamic_image_size else 1  # without the thumbnail
        self._check_prompts()

    @property
    def attention_layers(self) -> list[nn.Module]:
        """Attention modules of the Llama model."""
        return [layer.self_attn for layer in self.model.language_model.layers]

    @property
    def projection(self) -> Any:
        """An identity: final states are in retrieval space."""
        return self.model.projection

    def prepare_pages(self, images: Sequence[Image.Image]) -> PageBatch:
        """Return the tiles of all pages in sequence, and prompts with one image token per merged patch."""
        side = self.config.force_image_size
        shapes = [choose_tiling(*image.size, side, self.max_tiles) for image in images]
        tiles = [
            cut_tiles(image, *shape, side, self.has_thumbnail(*shape))
            for image, shape in zip(images, shapes, strict=True)
        ]
        prompts = [self.page_prompt(len(page)) for page in tiles]
        inputs = self._to_device(self.tokenizer(prompts, return_tensors="pt", padding=True))
        visual = inputs["input_ids"] == self.config.img_context_token_id
        flat = pixel_values([tile for page in tiles for tile in page])
        inputs["pixel_values"] = flat.to(self.device, self.model.dtype)
        tokens = self.config.side_tokens
        grids = [PatchGrid.tiled(*shape, tokens, tokens, self.has_thumbnail(*shape)) for shape in shapes]
        return PageBatch(inputs, visual, inputs["attention_mask"], list(grids))

    def prepare_queries(self, texts: Sequence[str]) -> tuple[dict[str, Any], Tensor]:
        """Return query prompts, truncated to the checkpoint's length; all tokens except padding are scored."""
        prompts = [QUERY_PROMPT.format(prefix=self.config.query_prefix, text=text) for text in texts]
        encoded = self.tokenizer(
            prompts, return_tensors="pt", padding=True, truncation=True, max_length=self.config.q_max_length
        )
        inputs = self._to_device(encoded)
        return inputs, inputs["attention_mask"]

    def has_thumbnail(self, across: int, down: int) -> bool:
        """Return whether a page has a thumbnail; a page of one tile has none."""
        return bool(self.config.use_thumbnail) and across * down > 1

    def page_prompt(self, tiles: int) -> str:
        """Return the prompt of a page with this number of tiles."""
        image = IMAGE_TOKEN * (tiles * self.config.side_tokens**2)
        return PAGE_PROMPT.format(prefix=self.config.passage_prefix, image=image)

    def _check_prompts(self) -> None:
        """Check the image token of the tokenizer, and that pages are never truncated."""
        token = self.tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
        if self.config.img_context_token_id != token:
            raise CheckpointError(
                f"{self.name}: {IMAGE_TOKEN} is token {self.config.img_context_token_id} in config.json and {token} in "
                "its tokenizer. Take both from one checkpoint."
            )
        tiles = self.max_tiles + self.has_thumbnail(self.max_tiles, 1)
        longest = len(self.tokenizer(self.page_prompt(tiles))["input_ids"])
        if self.config.p_max_length is not None and longest > self.config.p_max_length:
            raise CheckpointError(
                f"{self.name}: a page of {tiles} tiles takes {longest} tokens, and config.json allows "
                f"{self.config.p_max_length}. Lower max_input_tiles, or raise p_max_length as in training."
            )

    def _to_device(self, encoded: Any) -> dict[str, Tensor]:
        return {k: torch.as_tensor(encoded[k]).to(self.device) for k in ("input_ids", "attention_mask")}


@cache
def tilings(limit: int) -> list[tuple[int, int]]:
    """Return all (across, down) of at most `limit` tiles, fewer tiles first.

    Shapes with equal numbers of tiles are in the order of a Python set filled this way, as in the published
    preprocessing. It decides for square pages, where three by two and two by three are equally good.
    """
    shapes = {(a, d) for n in range(1, limit + 1) for a in range(1, n + 1) for d in range(1, n + 1) if a * d <= limit}
    return sorted(shapes, key=lambda shape: shape[0] * shape[1])


def choose_tiling(width: int, height: int, side: int, limit: int) -> tuple[int, int]:
    """Return tiles across and down: closest to the page's shape with a sufficient area; the first if equal."""
    page = width / height

    def quality(shape: tuple[int, int]) -> float:
        aspect = shape[0] / shape[1]
        area = shape[0] * shape[1] * side * side / (width * height)
        return min(area, SUFFICIENT_AREA) * min(aspect / page, page / aspect)

    return max(tilings(limit), key=quality)


def cut_tiles(image: Image.Image, across: int, down: int, side: int, thumbnail: bool) -> list[Image.Image]:
    """Return `across x down` tiles of `side` pixels in reading order, optionally followed by a thumbnail."""
    page = image.resize((across * side, down * side), Image.Resampling.BICUBIC)
    tiles = [
        page.crop((x * side, y * side, (x + 1) * side, (y + 1) * side)) for y in range(down) for x in range(across)
    ]
    return tiles + [image.resize((side, side), Image.Resampling.BICUBIC)] * thumbnail


def pixel_values(tiles: Sequence[Image.Image]) -> Tensor:
    """Return `(tiles, 3, side, side)` values from -1 to 1, as expected by SigLIP."""
    values = np.stack([np.asarray(tile, np.float32) for tile in tiles])
    return torch.from_numpy(values / 127.5 - 1).permute(0, 3, 1, 2).contiguous()


def load_nemotron(checkpoint: Checkpoint) -> NemotronColEmbed:
    """Load the published layout: model and processor configurations, a tokenizer and safetensors."""
    from transformers import PreTrainedTokenizerFast

    processor = checkpoint.json("processor_config.json") or {}
    config = NemotronConfig.from_files(checkpoint.name, checkpoint.config, processor)
    model = checkpoint.pretrained(NemotronModel, config=config, key_mapping=KEY_MAPPING, unused=POOLING_HEAD)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(
        checkpoint.name, revision=checkpoint.revision, padding_side="left"
    )
    settings = checkpoint.choose_layer_settings(NemotronColEmbed.family, len(model.language_model.layers), model)
    return NemotronColEmbed(model, tokenizer, settings, checkpoint.name)


def is_nemotron(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint has NVIDIA's vision tower and Llama; the larger models are Qwen3-VL."""
    config = checkpoint.config
    names = " ".join([checkpoint.model_type, *(config.get("architectures") or [])]).lower()
    named = "img_context_token_id" in config or "nemotron" in names or "nemoretriever" in names
    return named and {"vision_config", "llm_config"} <= config.keys()


BACKBONE = Backbone(load_nemotron, is_nemotron)
