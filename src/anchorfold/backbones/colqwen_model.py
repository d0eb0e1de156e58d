"""Qwen vision-language models with a retrieval projection, with the weight names of colpali-engine."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5Model
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

# Ours and transformers', TomoroAI's, colpali-engine's, OpenSearch-AI's.
DIMENSION_KEYS = ("embedding_dim", "embed_dim", "dim", "dims")
PREFIX_DIMENSIONS = "head_dims"  # of one projection whose leading components were trained too (EVIE)


class ProjectedModel:
    """Mixin that adds `custom_text_proj` to a vision-language model."""

    dimension: ClassVar[int] = 128  # of the projection, if the configuration does not contain it
    config: Any
    language_model: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        configured = [getattr(config, key, None) for key in DIMENSION_KEYS]
        widest = max(getattr(config, PREFIX_DIMENSIONS, None) or [0])
        self.custom_text_proj = self.make_projection(widest or next(filter(None, configured), self.dimension))
        self.post_init()  # type: ignore[attr-defined]

    def make_projection(self, dimension: int) -> nn.Module:
        """Return the layer from final states to retrieval space."""
        return nn.Linear(self.config.text_config.hidden_size, dimension)

    def forward(self, **inputs: Any) -> Tensor:
        """Return L2-normalised vectors `(B, T, d_r)`."""
        hidden = super().forward(**inputs, use_cache=False).last_hidden_state  # type: ignore[misc]
        return torch.nn.functional.normalize(self.custom_text_proj(hidden), dim=-1)

    def remove_causal_mask(self) -> None:
        """Make attention bidirectional. Masks follow the config; kernels without a mask follow the modules' flag."""
        self.config.text_config.is_causal = False
        self.language_model.config.is_causal = False
        for module in self.attention_layers:
            module.is_causal = False

    @property
    def attention_layers(self) -> list[Any]:
        """Attention modules of the language model; layers with linear attention have none."""
        return [layer.self_attn for layer in self.language_model.layers if hasattr(layer, "self_attn")]


class ColQwen2Model(ProjectedModel, Qwen2VLModel):
    """Qwen2-VL with a projection."""


class ColQwen25Model(ProjectedModel, Qwen2_5_VLModel):
    """Qwen2.5-VL with a projection."""


class ColQwen3Model(ProjectedModel, Qwen3VLModel):
    """Qwen3-VL with a projection."""

    dimension = 320


class SauerkrautColQwen3Model(ColQwen3Model):
    """Qwen3-VL with the projection of sauerkrautlm-colpali."""

    dimension = 128


class ColQwen35Model(ProjectedModel, Qwen3_5Model):
    """Qwen3.5 with a projection: full attention in every fourth layer, linear attention in the others."""


class NemotronQwen3Model(ProjectedModel, Qwen3VLModel):
    """NVIDIA's Qwen3-VL: the states of the last layer, before the final norm, are in retrieval space."""

    def make_projection(self, dimension: int) -> nn.Module:
        """Return an identity and disable the final norm."""
        self.language_model.norm = nn.Identity()
        return nn.Identity()
