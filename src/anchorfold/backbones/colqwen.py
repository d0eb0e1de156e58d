"""The ColQwen family: Qwen's vision-language models with a projection, causal or not, with or without LoRA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from PIL import Image
from torch import Tensor, nn
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLModel
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLModel

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.adapters import add_adapters, plain_linear, unload_adapters
from anchorfold.backbones.base import PageBatch, PromptedRetriever, apply_projection
from anchorfold.backbones.checkpoint import Checkpoint
from anchorfold.backbones.colqwen_layouts import IMAGE_TOKEN, KEY_MAPPING, LAYOUTS, TEXT, Layout, with_chat_prompts
from anchorfold.backbones.qwen_images import load_image_processor
from anchorfold.backbones.retrieval_heads import merged_grids
from anchorfold.backbones.universal import add_universal_tokens, universal_count, universal_text
from anchorfold.errors import CheckpointError

DIMENSION_KEYS = ("embedding_dim", "embed_dim", "dim")  # ours and transformers', TomoroAI's, colpali-engine's


class ProjectedModel:
    """`custom_text_proj` on a vision-language model of Qwen's, under the names that colpali-engine uses."""

    dimension: ClassVar[int] = 128  # of the projection, where the configuration does not say
    config: Any
    language_model: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)  # type: ignore[call-arg]
        given = (getattr(config, key, None) for key in DIMENSION_KEYS)
        self.custom_text_proj = self.make_projection(next(filter(None, given), self.dimension))
        self.post_init()  # type: ignore[attr-defined]

    def make_projection(self, dimension: int) -> nn.Module:
        """From the final states to retrieval space."""
        return nn.Linear(self.config.text_config.hidden_size, dimension)

    def forward(self, **inputs: Any) -> Tensor:
        """`(B, T, d_r)` L2-normalised."""
        hidden = super().forward(**inputs, use_cache=False).last_hidden_state  # type: ignore[misc]
        return torch.nn.functional.normalize(self.custom_text_proj(hidden), dim=-1)

    def remove_causal_mask(self) -> None:
        """Let every token see every other. The masks follow the config; the modules' flag, kernels without a mask."""
        self.config.text_config.is_causal = False
        self.language_model.config.is_causal = False
        for layer in self.language_model.layers:
            layer.self_attn.is_causal = False


class ColQwen2Model(ProjectedModel, Qwen2VLModel):
    """On Qwen2-VL."""


class ColQwen25Model(ProjectedModel, Qwen2_5_VLModel):
    """On Qwen2.5-VL."""


class ColQwen3Model(ProjectedModel, Qwen3VLModel):
    """On Qwen3-VL."""

    dimension = 320


class NemotronQwen3Model(ProjectedModel, Qwen3VLModel):
    """On Qwen3-VL, as NVIDIA does it: the last layer's states, before the final norm, are in retrieval space."""

    def make_projection(self, dimension: int) -> nn.Module:
        """An identity; the checkpoint's final norm is not run either."""
        self.language_model.norm = nn.Identity()
        return nn.Identity()


UNUSED_NORM = (r"^language_model\.norm\.",)  # NVIDIA's checkpoints carry it all the same


class ColQwen(PromptedRetriever):
    """Pages on dynamic grids of at most as many tokens as the layout says."""

    def __init__(
        self, model: Any, tokenizer: Any, image_processor: Any, settings: LayerSettings, name: str, layout: Layout
    ) -> None:
        self.universal = universal_count(model.config)
        super().__init__(model, replace(settings, universal=self.universal), name)
        self.family = layout.family
        self.layout = layout
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.image_token_id = model.config.image_token_id

    @property
    def attention_layers(self) -> list[nn.Module]:
        """The language model's attention modules."""
        return [layer.self_attn for layer in self.model.language_model.layers]

    @property
    def projection(self) -> Any:
        """`custom_text_proj`."""
        return self.model.custom_text_proj

    def add_universal_tokens(self, count: int) -> list[int]:
        """Append `count` new universal tokens to every page, for AGC; returns their ids."""
        self.universal, self.settings = count, replace(self.settings, universal=count)
        return add_universal_tokens(self.model, self.tokenizer, count)

    def project(self, hidden: Tensor) -> Tensor:
        """As the base class, also where adapters are kept apart."""
        return apply_projection(plain_linear(self.projection), hidden)

    def prepare_pages(self, images: Sequence[Image.Image]) -> PageBatch:
        """Page prompts with one image token per merged patch; `mm_token_type_ids` let M-RoPE see the grid."""
        pixels = self.image_processor(images=list(images), return_tensors="pt")
        grid = pixels["image_grid_thw"]
        merge = self.image_processor.merge_size
        counts = (grid.prod(1) // merge**2).tolist()
        prompt = self.layout.page_prompt + universal_text(self.universal)
        prompts = [prompt.replace(IMAGE_TOKEN, IMAGE_TOKEN * n) for n in counts]
        inputs = dict(self.tokenizer(prompts, return_tensors="pt", padding=True))
        visual = inputs["input_ids"] == self.image_token_id
        inputs |= {
            "pixel_values": pixels["pixel_values"].to(self.model.dtype),
            "image_grid_thw": grid,
            "mm_token_type_ids": visual.int(),
        }
        inputs = {k: v.to(self.device) for k, v in inputs.items() if k != "token_type_ids"}
        return PageBatch(inputs, visual.to(self.device), inputs["attention_mask"], merged_grids(grid, merge))

    def prepare_queries(self, texts: Sequence[str]) -> tuple[dict[str, Any], Tensor]:
        """Query prompts; every token that is no padding scores."""
        limit = self.layout.query_length
        encoded = self.tokenizer(
            [self.layout.query_prompt.replace(TEXT, text) for text in texts],
            return_tensors="pt", padding=True, truncation=limit is not None, max_length=limit,
        )  # fmt: skip
        inputs = {k: v.to(self.device) for k, v in encoded.items() if k != "token_type_ids"}
        return inputs, inputs["attention_mask"]


def load_colqwen(checkpoint: Checkpoint) -> ColQwen:
    """A model with its projection, or adapters and the model that they name, which may be adapters in turn."""
    *adapters, base = chain = _chain(checkpoint)
    layout = _layout(checkpoint.name, base)
    # Adapters do not show whether they were trained with a causal mask: the configuration that `training/colqwen25`
    # writes beside them does.
    trained = next(filter(None, (part.json("config.json") for part in adapters)), {})
    if checkpoint.bidirectional is None and trained.get("text_config", {}).get("is_causal") is False:
        base = replace(base, bidirectional=True)
    model = _load_model(base, layout)
    # Adapters may come with a tokenizer and an image processor of their own.
    source = next((part for part in chain if part.json("tokenizer_config.json")), base)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        source.name, revision=source.revision, config=model.config, padding_side="left"
    )
    for part in reversed(adapters):
        if part is not adapters[-1]:
            unload_adapters(model)
        _add_trained_tokens(model, tokenizer, part)
        add_adapters(model, replace(part, merge_adapters=checkpoint.merge_adapters or part is not checkpoint))
    if layout.chat:
        layout = with_chat_prompts(layout, source.name, tokenizer, source.json("processor_config.json") or {})
    images = load_image_processor(chain, layout.visual_tokens)
    settings = checkpoint.layer_settings(layout.family, len(model.language_model.layers), model)
    return ColQwen(model, tokenizer, images, settings, checkpoint.name, layout)


def _chain(checkpoint: Checkpoint) -> list[Checkpoint]:
    """Adapters, what they were trained on, what that was trained on, and a whole model last."""
    chain = [checkpoint]
    while "peft_type" in (config := chain[-1].config):
        base = checkpoint.base(config["base_model_name_or_path"], config.get("revision"))
        if base.name in {part.name for part in chain}:
            raise CheckpointError(
                f"{chain[-1].name} names {base.name} as the model that its adapters are for, which they are for "
                "themselves: write the true one into base_model_name_or_path of its adapter_config.json."
            )
        chain.append(base)
    return chain


def _add_trained_tokens(model: Any, tokenizer: Any, adapters: Checkpoint) -> None:
    """Room for the universal tokens that these adapters bring."""
    count = universal_count(adapters.json("config.json") or {})
    if count in (0, universal_count(model.config)):
        return
    if not adapters.config.get("trainable_token_indices"):
        raise CheckpointError(
            f"{adapters.name} was trained with {count} universal tokens, and neither its adapters nor their base hold "
            "them: copy the adapters again, or train them anew."
        )
    add_universal_tokens(model, tokenizer, count)


def _layout(name: str, base: Checkpoint) -> Layout:
    layout = LAYOUTS.get(base.model_type)
    if layout is None:
        raise ValueError(
            f"{name} holds adapters for a {base.model_type} model; only those of the ColQwen family are read. For "
            "ColPali, load the merged checkpoint vidore/colpali-v1.3-hf."
        )
    return layout


def _load_model(checkpoint: Checkpoint, layout: Layout) -> Any:
    model_class = globals()[layout.model_class]
    # Without the code that a release wants to run and the kernels that it wants to run on.
    values = {
        k: v for k, v in checkpoint.config.items() if k not in ("model_type", "auto_map") and "attn_impl" not in k
    }
    model = checkpoint.pretrained(
        model_class,
        config=model_class.config_class.from_dict(values),
        key_mapping=KEY_MAPPING,
        not_used=UNUSED_NORM if model_class is NemotronQwen3Model else (),
    )
    model._weight_conversions = []  # saved again, weights have our names: the patterns cannot be read backwards
    causal = getattr(model.config.text_config, "is_causal", True) and not layout.bidirectional
    if layout.bidirectional and checkpoint.bidirectional is False:
        raise ValueError(f"{checkpoint.name} was trained without a causal mask, and is run as it was trained.")
    if checkpoint.bidirectional or (checkpoint.bidirectional is None and not causal):
        model.remove_causal_mask()
    return model
