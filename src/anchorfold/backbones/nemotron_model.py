"""Nemotron ColEmbed as a transformers model: SigLIP tiles through `mlp1` into a Llama without a causal mask."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel, PretrainedConfig, PreTrainedModel, SiglipVisionConfig
from transformers.models.siglip.modeling_siglip import SiglipVisionModel

from anchorfold.errors import CheckpointError

# Spellings of older checkpoints and of the trainer's own state; transformers knows `vision_model.vision_model`.
KEY_MAPPING = {
    r"^model\.(?=vision_model|language_model|mlp1)": "",
    r"^language_model\.model\.": "language_model.",
}
# SigLIP's pooling head makes one vector of a tile; late interaction takes the patches.
POOLING_HEAD = (r"^vision_model\.head\.",)
LLAMA = ("llama", "llama_bidirec")
# What a checkpoint's processor file may say too. It wins: published code reads these there.
PROCESSOR_KEYS = {
    "image_size": "force_image_size",
    "max_input_tiles": "max_input_tiles",
    "use_thumbnail": "use_thumbnail",
    "dynamic_image_size": "dynamic_image_size",
    "norm_type": "norm_type",
    "p_max_length": "p_max_length",
    "q_max_length": "q_max_length",
    "passage_prefix": "passage_prefix",
    "query_prefix": "query_prefix",
}


class NemotronConfig(PretrainedConfig):
    """A checkpoint's configuration, under the names that it uses itself. Sides are pixels, lengths tokens.

    The number of tiles and the thumbnail have no defaults: a page cut otherwise than in training has other vectors.
    """

    model_type = "llama_nemotron_vl"
    sub_configs_defaults = {"vision_config": SiglipVisionConfig, "llm_config": LlamaConfig}  # noqa: RUF012

    vision_config: Any = None
    llm_config: Any = None
    img_context_token_id: int | None = None
    force_image_size: int = 0
    max_input_tiles: int | None = None
    use_thumbnail: bool | None = None
    dynamic_image_size: bool = True
    downsample_ratio: float = 0.5
    select_layer: int = -1
    norm_type: str = "siglip"
    p_max_length: int | None = None
    q_max_length: int | None = None
    passage_prefix: str = "passage:"
    query_prefix: str = "query:"

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.llm_config.is_causal = False
        self.vision_config.vision_use_head = False

    @classmethod
    def from_files(cls, name: str, config: dict[str, Any], processor: dict[str, Any]) -> NemotronConfig:
        """From a checkpoint's `config.json` and `processor_config.json` (empty if it has none)."""
        overrides = {
            ours: processor[theirs] for theirs, ours in PROCESSOR_KEYS.items() if processor.get(theirs) is not None
        }
        values = {**config, **overrides}
        wrong = _foreign(values)
        if not wrong:
            shape = cls(**_architecture(values))
            shape.force_image_size = shape.force_image_size or shape.vision_config.image_size
            wrong = _unfit(shape)
        if wrong:
            raise CheckpointError(f"{name} is no Nemotron ColEmbed that can be loaded: {wrong}.")
        return shape

    @property
    def shrink(self) -> int:
        """Patches a token spans in each direction."""
        return round(1 / self.downsample_ratio)

    @property
    def side_tokens(self) -> int:
        """Tokens along a tile's side."""
        return int(self.force_image_size // self.vision_config.patch_size // self.shrink)


def _architecture(config: dict[str, Any]) -> dict[str, Any]:
    """Without the code that a release wants to run and the kernels that it wants to run on."""
    parts = {k: _architecture(v) if k in ("vision_config", "llm_config") else v for k, v in config.items()}
    return {k: v for k, v in parts.items() if k not in ("model_type", "auto_map") and "attn_impl" not in k}


def _foreign(config: dict[str, Any]) -> str:
    """What the model below would compute otherwise than the checkpoint means it; nothing if all is well."""
    vision, language = (config[part].get("model_type") for part in ("vision_config", "llm_config"))
    absent = [k for k in ("max_input_tiles", "use_thumbnail") if config.get(k) is None]
    if vision != "siglip_vision_model":
        return f"its vision tower is {vision!r}, and only siglip_vision_model is known"
    if language not in LLAMA:
        return f"its language model is {language!r}, and only Llama is known"
    if config.get("select_layer", -1) != -1:
        return f"it reads layer {config['select_layer']} of the vision tower, and only the last is known"
    if config.get("ps_version", "v2") == "v1":
        return "its pixel shuffle is of version v1, and only v2 is known"
    if config.get("norm_type", "siglip") != "siglip":
        return f"its pixels are normalised for {config['norm_type']!r}, and only siglip is known"
    if absent:
        return f"it does not say how its pages are cut; add {' and '.join(absent)} to its config.json, as in training"
    return ""


def _unfit(config: NemotronConfig) -> str:
    """Why tiles do not fit the vision tower; nothing if they do."""
    side, patch, trained = config.force_image_size, config.vision_config.patch_size, config.vision_config.image_size
    if side != trained:
        return f"its tiles of {side} pixels are not the {trained} of its vision tower"
    if side % (patch * config.shrink):
        return f"its tiles of {side} pixels cannot be cut into {config.shrink} x {config.shrink} patches of {patch}"
    return ""


class NemotronModel(PreTrainedModel):
    """SigLIP, pixel shuffle, `mlp1` and a bidirectional Llama, under the names of the published checkpoints."""

    config_class = NemotronConfig
    main_input_name = "input_ids"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    def __init__(self, config: NemotronConfig) -> None:
        super().__init__(config)
        merged = config.vision_config.hidden_size * config.shrink**2
        width = config.llm_config.hidden_size
        self.vision_model = SiglipVisionModel(config.vision_config)
        self.mlp1 = nn.Sequential(
            nn.LayerNorm(merged), nn.Linear(merged, width), nn.GELU(), nn.Linear(width, width)
        )  # fmt: skip
        self.language_model = LlamaModel(config.llm_config)
        for layer in self.language_model.layers:
            layer.self_attn.is_causal = False  # for kernels that get no mask; the masks follow the config
        # Final states are in retrieval space. This is where they are taken from, as at a projection.
        self.projection = nn.Identity()
        self.post_init()

    def tile_tokens(self, pixel_values: Tensor) -> Tensor:
        """`(tiles, 3, side, side)` to `(tiles, tokens, d)`: neighbouring patches merged, row by row."""
        patches = self.vision_model(pixel_values=pixel_values).last_hidden_state
        tiles, count, width = patches.shape
        k, side = self.config.shrink, round(count**0.5)
        grid = patches.view(tiles, side // k, k, side // k, k, width).transpose(2, 3)
        tokens: Tensor = self.mlp1(grid.reshape(tiles, (side // k) ** 2, k * k * width))
        return tokens

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, pixel_values: Tensor | None = None
    ) -> Tensor:
        """`(B, T, d)` L2-normalised. `pixel_values` holds the tiles of all pages, one after the other."""
        states = self.language_model.embed_tokens(input_ids)
        if pixel_values is not None:
            tokens = self.tile_tokens(pixel_values).to(states.dtype).flatten(0, 1)
            visual = input_ids == self.config.img_context_token_id
            if int(visual.sum()) != len(tokens):
                raise ValueError(f"{int(visual.sum())} places for images, but {len(tokens)} tokens of tiles.")
            states = states.masked_scatter(visual[..., None], tokens)
        output = self.language_model(inputs_embeds=states, attention_mask=attention_mask, use_cache=False)
        return F.normalize(self.projection(output.last_hidden_state), dim=-1)
