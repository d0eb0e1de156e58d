"""Nemotron ColEmbed: 512-pixel tiles and a thumbnail, prompts, left padding; hidden states are the embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.base import PageBatch, PromptedRetriever
from anchorfold.backbones.checkpoint import Backbone, Checkpoint
from anchorfold.backbones.nemotron_model import KEY_MAPPING, POOLING_HEAD, NemotronConfig, NemotronModel
from anchorfold.backbones.nemotron_tiles import choose_tiling, cut, pixels
from anchorfold.errors import CheckpointError
from anchorfold.page import PatchGrid

IMAGE_TOKEN = "<IMG_CONTEXT>"
PAGE_PROMPT = "{prefix} <img>{image}</img> "
QUERY_PROMPT = "{prefix} {text}"


class NemotronColEmbed(PromptedRetriever):
    """Nemotron ColEmbed-3B v2: at most 8 tiles and a thumbnail, 256 tokens each, 3,072 dimensions."""

    family = "nemotron"

    def __init__(self, model: NemotronModel, tokenizer: Any, settings: LayerSettings, name: str) -> None:
        super().__init__(model, settings, name)
        self.tokenizer = tokenizer
        self.config = model.config
        self._check_prompts()

    @property
    def attention_layers(self) -> list[nn.Module]:
        """The Llama's attention modules."""
        return [layer.self_attn for layer in self.model.language_model.layers]

    @property
    def projection(self) -> Any:
        """An identity: final states are in retrieval space."""
        return self.model.projection

    def prepare_pages(self, images: Sequence[Image.Image]) -> PageBatch:
        """Tiles of all pages, one after the other, and prompts with one image token per merged patch."""
        shapes = [self.tiling(image) for image in images]
        tiles = [
            cut(image, *shape, self.config.force_image_size, self.has_thumbnail(*shape))
            for image, shape in zip(images, shapes, strict=True)
        ]
        prompts = [self.page_prompt(len(page)) for page in tiles]
        inputs = self._to_device(self.tokenizer(prompts, return_tensors="pt", padding=True))
        flat = pixels([tile for page in tiles for tile in page])
        visual = inputs["input_ids"] == self.config.img_context_token_id
        inputs["pixel_values"] = flat.to(self.device, self.model.dtype)
        return PageBatch(inputs, visual, inputs["attention_mask"], [self.grid(*shape) for shape in shapes])

    def prepare_queries(self, texts: Sequence[str]) -> tuple[dict[str, Any], Tensor]:
        """Query prompts, cut at the checkpoint's length; every token that is no padding scores."""
        prompts = [QUERY_PROMPT.format(prefix=self.config.query_prefix, text=text) for text in texts]
        encoded = self.tokenizer(
            prompts, return_tensors="pt", padding=True, truncation=True, max_length=self.config.q_max_length
        )
        inputs = self._to_device(encoded)
        return inputs, inputs["attention_mask"]

    def tiling(self, image: Image.Image) -> tuple[int, int]:
        """Tiles across and down."""
        return choose_tiling(*image.size, self.config.force_image_size, self.most_tiles)

    @property
    def most_tiles(self) -> int:
        """Without the thumbnail."""
        return self.config.max_input_tiles if self.config.dynamic_image_size else 1

    def has_thumbnail(self, across: int, down: int) -> bool:
        """A page in one tile is its own thumbnail."""
        return bool(self.config.use_thumbnail) and across * down > 1

    def grid(self, across: int, down: int) -> PatchGrid:
        """Where a page's tokens lie."""
        side = self.config.side_tokens
        return PatchGrid.tiled(across, down, side, side, self.has_thumbnail(across, down))

    def page_prompt(self, tiles: int) -> str:
        """The prompt of a page in so many tiles."""
        image = IMAGE_TOKEN * (tiles * self.config.side_tokens**2)
        return PAGE_PROMPT.format(prefix=self.config.passage_prefix, image=image)

    def _check_prompts(self) -> None:
        """Pages must pass whole, and their image tokens must be the ones that the model replaces."""
        token = self.tokenizer.convert_tokens_to_ids(IMAGE_TOKEN)
        if self.config.img_context_token_id != token:
            raise CheckpointError(
                f"{self.name}: config.json says that {IMAGE_TOKEN} is token {self.config.img_context_token_id}, its "
                f"tokenizer says {token}. Take both from one checkpoint."
            )
        most = self.most_tiles + self.has_thumbnail(self.most_tiles, 1)
        longest = len(self.tokenizer(self.page_prompt(most))["input_ids"])
        if self.config.p_max_length is not None and longest > self.config.p_max_length:
            raise CheckpointError(
                f"{self.name}: a page of {most} tiles takes {longest} tokens, and config.json allows "
                f"{self.config.p_max_length}. Lower max_input_tiles, or raise p_max_length as it was trained."
            )

    def _to_device(self, encoded: Any) -> dict[str, Tensor]:
        return {k: torch.as_tensor(encoded[k]).to(self.device) for k in ("input_ids", "attention_mask")}


def load_nemotron(checkpoint: Checkpoint) -> NemotronColEmbed:
    """The published layout: a configuration, a processor's configuration, a tokenizer and safetensors."""
    from transformers import PreTrainedTokenizerFast

    processor = checkpoint.json("processor_config.json") or {}
    shape = NemotronConfig.from_files(checkpoint.name, checkpoint.config, processor)
    model = checkpoint.pretrained(NemotronModel, config=shape, key_mapping=KEY_MAPPING, not_used=POOLING_HEAD)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(
        checkpoint.name, revision=checkpoint.revision, padding_side="left"
    )
    settings = checkpoint.layer_settings(NemotronColEmbed.family, len(model.language_model.layers), model)
    return NemotronColEmbed(model, tokenizer, settings, checkpoint.name)


def is_nemotron(checkpoint: Checkpoint) -> bool:
    """A vision tower and a Llama of NVIDIA's making; its larger siblings are Qwen3-VL inside, and other classes."""
    config = checkpoint.config
    names = " ".join([checkpoint.model_type, *(config.get("architectures") or [])]).lower()
    known = "img_context_token_id" in config or "nemotron" in names or "nemoretriever" in names
    return known and {"vision_config", "llm_config"} <= config.keys()


BACKBONE = Backbone(load_nemotron, is_nemotron)
