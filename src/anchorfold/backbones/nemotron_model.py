"""Nemotron ColEmbed as a transformers model: SigLIP tiles through `mlp1` into a Llama without a causal mask."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel, PretrainedConfig, PreTrainedModel, SiglipVisionConfig
from transformers.models.siglip.modeling_siglip import SiglipVisionModel

from anchorfold.errors import CheckpointError

# Weight names of older checkpoints and of the trainer's state; transformers maps `vision_model.vision_model`.
KEY_MAPPING = {
    r"^model\.(?=vision_model|language_model|mlp1)": "",
    r"^language_model\.model\.": "language_model.",
}
# SigLIP's pooling head returns one vector per tile; late interaction uses the patches.
POOLING_HEAD = (r"^vision_model\.head\.",)
LLAMA = ("llama", "llama_bidirec")
# Keys that the processor's file may contain too. It has priority, as in the published code.
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
    """Configuration with the checkpoint's own names. Sides are in pixels, lengths in tokens.

    The number of tiles and the thumbnail have no defaults: pages must be tiled as in training.
    """

    model_type = "llama_nemotron_vl"
    sub_configs = {"vision_config": SiglipVisionConfig, "llm_config": LlamaConfig}  # noqa: RUF012

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
        for name, kind in self.sub_configs.items():  # recent versions of transformers do this, older ones do not
            if not isinstance(part := getattr(self, name), PretrainedConfig):
                setattr(self, name, kind(**(part or {})))
        super().__post_init__(**kwargs)
        self.llm_config.is_causal = False
        self.vision_config.vision_use_head = False

    @classmethod
    def from_files(cls, name: str, config: dict[str, Any], processor: dict[str, Any]) -> NemotronConfig:
        """Create a configuration from `config.json` and `processor_config.json` (empty if it does not exist)."""
        overrides = {
            ours: processor[theirs] for theirs, ours in PROCESSOR_KEYS.items() if processor.get(theirs) is not None
        }
        values = {**config, **overrides}
        problem = _unsupported(values)
        if not problem:
            created = cls(**_architecture(values))
            created.force_image_size = created.force_image_size or created.vision_config.image_size
            problem = _invalid_tiles(created)
        if problem:
            raise CheckpointError(f"{name} is not a supported Nemotron ColEmbed checkpoint: {problem}.")
        return created

    @property
    def shrink(self) -> int:
        """Patches per token in each direction."""
        return round(1 / self.downsample_ratio)

    @property
    def side_tokens(self) -> int:
        """Tokens per side of a tile."""
        return int(self.force_image_size // self.vision_config.patch_size // self.shrink)


def _architecture(config: dict[str, Any]) -> dict[str, Any]:
    """Remove the checkpoint's own code and attention implementation."""
    parts = {k: _architecture(v) if k in ("vision_config", "llm_config") else v for k, v in config.items()}
    return {k: v for k, v in parts.items() if k not in ("model_type", "auto_map") and "attn_impl" not in k}


def _unsupported(config: dict[str, Any]) -> str:
    """Return the first setting that `NemotronModel` does not implement; empty if there is none."""
    vision, language = (config[part].get("model_type") for part in ("vision_config", "llm_config"))
    absent = [k for k in ("max_input_tiles", "use_thumbnail") if config.get(k) is None]
    if vision != "siglip_vision_model":
        return f"its vision tower is {vision!r}, and only siglip_vision_model is supported"
    if language not in LLAMA:
        return f"its language model is {language!r}, and only Llama is supported"
    if config.get("select_layer", -1) != -1:
        return f"it reads layer {config['select_layer']} of the vision tower, and only the last is supported"
    if config.get("ps_version", "v2") == "v1":
        return "its pixel shuffle is of version v1, and only v2 is supported"
    if config.get("norm_type", "siglip") != "siglip":
        return f"its pixels are normalised for {config['norm_type']!r}, and only siglip is supported"
    if absent:
        return f"the tiling of pages is not configured; add {' and '.join(absent)} to its config.json, as in training"
    return ""


def _invalid_tiles(config: NemotronConfig) -> str:
    """Return why tiles do not fit the vision tower; empty if they do."""
    side, patch, trained = config.force_image_size, config.vision_config.patch_size, config.vision_config.image_size
    if side != trained:
        return f"its tiles of {side} pixels are not the {trained} of its vision tower"
    if side % (patch * config.shrink):
        return f"its tiles of {side} pixels cannot be cut into {config.shrink} x {config.shrink} patches of {patch}"
    return ""


class NemotronModel(PreTrainedModel):
    """SigLIP, pixel shuffle, `mlp1` and a bidirectional Llama, with the weight names of the published checkpoints."""

    config_class = NemotronConfig
    main_input_name = "input_ids"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True

    def __init__(self, config: NemotronConfig) -> None:
        super().__init__(config)
        merged = config.vision_config.hidden_size * config.shrink**2
        dim = config.llm_config.hidden_size
        self.vision_model = SiglipVisionModel(config.vision_config)
        self.mlp1 = nn.Sequential(
            nn.LayerNorm(merged), nn.Linear(merged, dim), nn.GELU(), nn.Linear(dim, dim)
        )  # fmt: skip
        self.language_model = LlamaModel(config.llm_config)
        for layer in self.language_model.layers:
            layer.self_attn.is_causal = False  # for kernels that get no mask; the masks follow the config
        # Final states are in retrieval space; they are captured at this identity.
        self.projection = nn.Identity()
        self.post_init()

    def tile_tokens(self, pixel_values: Tensor) -> Tensor:
        """Return tokens `(tiles, tokens, d)` of tiles `(tiles, 3, side, side)`: merged patches, row by row."""
        patches = self.vision_model(pixel_values=pixel_values).last_hidden_state
        tiles, count, dim = patches.shape
        k, side = self.config.shrink, round(count**0.5)
        grid = patches.view(tiles, side // k, k, side // k, k, dim).transpose(2, 3)
        tokens: Tensor = self.mlp1(grid.reshape(tiles, (side // k) ** 2, k * k * dim))
        return tokens

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, pixel_values: Tensor | None = None
    ) -> Tensor:
        """Return L2-normalised vectors `(B, T, d)`; `pixel_values` contains the tiles of all pages in sequence."""
        states = self.language_model.embed_tokens(input_ids)
        if pixel_values is not None:
            tokens = self.tile_tokens(pixel_values).to(states.dtype).flatten(0, 1)
            visual = input_ids == self.config.img_context_token_id
            if int(visual.sum()) != len(tokens):
                raise ValueError(f"{int(visual.sum())} image tokens in the prompt, but {len(tokens)} tokens of tiles.")
            states = states.masked_scatter(visual[..., None], tokens)
        output = self.language_model(inputs_embeds=states, attention_mask=attention_mask, use_cache=False)
        return F.normalize(self.projection(output.last_hidden_state), dim=-1)
