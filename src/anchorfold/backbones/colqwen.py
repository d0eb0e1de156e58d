"""The ColQwen family: Qwen vision-language models with a projection, causal or bidirectional, with or without LoRA."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from PIL import Image
from torch import Tensor, nn

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.adapters import adapter_chain, add_adapters, unload_adapters
from anchorfold.backbones.base import PageBatch, PromptedEncoder
from anchorfold.backbones.checkpoint import Backbone, Checkpoint
from anchorfold.backbones.colqwen_layouts import IMAGE_TOKEN, KEY_MAPPING, TEXT, Layout, find_layout, with_chat_prompts
from anchorfold.backbones.page_grids import merged_grids
from anchorfold.backbones.universal_tokens import add_universal_tokens, universal_count, universal_text
from anchorfold.errors import AssumedLayoutWarning, CheckpointError, InvalidArgumentError

UNUSED_NORM = (r"^language_model\.norm\.",)  # in NVIDIA's checkpoints
# transformers 4.49 had a class of its own for Qwen2.5-VL; `Fast` is the torchvision form before 5.0, `Pil` the Pillow
# form since. All of them produce the same patches.
IMAGE_PROCESSORS = {
    stem + form for stem in ("Qwen2VLImageProcessor", "Qwen2_5_VLImageProcessor") for form in ("", "Fast", "Pil")
}


class ColQwen(PromptedEncoder):
    """ColQwen encoder with dynamic grids, up to the token limit of its layout."""

    def __init__(
        self, model: Any, tokenizer: Any, image_processor: Any, layer_settings: LayerSettings, name: str, layout: Layout
    ) -> None:
        self.universal = universal_count(model.config)
        super().__init__(model, replace(layer_settings, universal=self.universal), name)
        self.family = layout.family
        self.layout = layout
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.image_token_id = model.config.image_token_id

    @property
    def attention_layers(self) -> list[nn.Module]:
        """Attention modules of the language model."""
        layers: list[nn.Module] = self.model.attention_layers
        return layers

    @property
    def projection(self) -> Any:
        """`custom_text_proj`."""
        return self.model.custom_text_proj

    def add_universal_tokens(self, count: int) -> list[int]:
        """Append `count` new universal tokens to every page, for AGC; return their ids."""
        self.universal, self.layer_settings = count, replace(self.layer_settings, universal=count)
        return add_universal_tokens(self.model, self.tokenizer, count)

    def prepare_pages(self, images: Sequence[Image.Image]) -> PageBatch:
        """Return prompts with one image token per merged patch; M-RoPE reads the grid from `mm_token_type_ids`."""
        pixels = self.image_processor(images=list(images), return_tensors="pt")
        grid = pixels["image_grid_thw"]
        merge = self.image_processor.merge_size
        prompt = self.layout.page_prompt + universal_text(self.universal)
        prompts = [prompt.replace(IMAGE_TOKEN, IMAGE_TOKEN * n) for n in (grid.prod(1) // merge**2).tolist()]
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
        """Return query prompts; all tokens except padding are scored."""
        limit = self.layout.query_length
        encoded = self.tokenizer(
            [self.layout.query_prompt.replace(TEXT, text) for text in texts],
            return_tensors="pt", padding=True, truncation=limit is not None, max_length=limit,
        )  # fmt: skip
        inputs = {k: v.to(self.device) for k, v in encoded.items() if k != "token_type_ids"}
        return inputs, inputs["attention_mask"]


def load_colqwen(checkpoint: Checkpoint) -> ColQwen:
    """Load a model with its projection, or adapters and their base model, which may be adapters again."""
    from transformers import AutoTokenizer

    *adapters, base = chain = adapter_chain(checkpoint)
    layout = find_layout(base.name, base.model_type)
    if layout is None:
        raise InvalidArgumentError(
            f"{checkpoint.name} contains adapters for a {base.model_type} model; only adapters of the ColQwen and "
            "ColPali families are supported."
        )
    # Adapters do not contain whether they were trained with a causal mask; the configuration that `training/colqwen25`
    # writes next to them does.
    trained = next(filter(None, (part.json("config.json") for part in adapters)), {})
    if checkpoint.bidirectional is None and trained.get("text_config", {}).get("is_causal") is False:
        base = replace(base, bidirectional=True)
    if layout.assumed:
        warnings.warn(f"{checkpoint.name}: {layout.assumed}.", AssumedLayoutWarning, stacklevel=4)
    model = _load_model(base, layout)
    # Adapters may have their own tokenizer and image processor.
    source = next((part for part in chain if part.json("tokenizer_config.json")), base)
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
    settings = checkpoint.choose_layer_settings(layout.family, len(model.attention_layers), model)
    return ColQwen(model, tokenizer, images, settings, checkpoint.name, layout)


def load_image_processor(sources: Sequence[Checkpoint], visual_tokens: int | None) -> Any:
    """Load the image processor of the first checkpoint that declares one, in its Pillow form.

    Args:
        sources: adapters and their base, or one checkpoint.
        visual_tokens: maximum visual tokens per page; a lower limit of the checkpoint has priority.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    for checkpoint in sources:
        declared = checkpoint.json("preprocessor_config.json")
        # Since transformers 5 in the processor's file.
        declared = declared or (checkpoint.json("processor_config.json") or {}).get("image_processor")
        if declared:
            break
    else:
        raise CheckpointError(f"{sources[-1].name} has no image processor: add its preprocessor_config.json.")
    kind = declared.get("image_processor_type", "Qwen2VLImageProcessor")
    if kind not in IMAGE_PROCESSORS:
        raise CheckpointError(
            f"{checkpoint.name} declares the image processor {kind!r}, which is not one of "
            f"{', '.join(sorted(IMAGE_PROCESSORS))}: use the preprocessor_config.json of its training."
        )
    # Limits are min_pixels and max_pixels in older files, or inside `size`, and edges in newer ones, in this priority.
    size = declared.get("size") or {}
    limits = {
        edge: declared.get(pixels) or size.get(edge) or size.get(pixels) or Qwen2VLImageProcessorPil.size[edge]
        for edge, pixels in (("shortest_edge", "min_pixels"), ("longest_edge", "max_pixels"))
    }
    others = {k: v for k, v in declared.items() if k not in ("min_pixels", "max_pixels", "size", "auto_map")}
    processor = Qwen2VLImageProcessorPil.from_dict({**others, "size": limits})
    if visual_tokens is not None:
        side = processor.patch_size * processor.merge_size
        processor.size["longest_edge"] = min(limits["longest_edge"], visual_tokens * side * side)
    return processor


def _add_trained_tokens(model: Any, tokenizer: Any, adapters: Checkpoint) -> None:
    """Add the universal tokens of adapters to the base model."""
    count = universal_count(adapters.json("config.json") or {})
    if count in (0, universal_count(model.config)):
        return
    if not adapters.config.get("trainable_token_indices"):
        raise CheckpointError(
            f"{adapters.name} was trained with {count} universal tokens, but neither its adapters nor their base "
            "contain them: copy the adapters again, or repeat the training."
        )
    add_universal_tokens(model, tokenizer, count)


def _load_model(checkpoint: Checkpoint, layout: Layout) -> Any:
    from anchorfold.backbones import colqwen_model

    model_class = getattr(colqwen_model, layout.model_class)
    # Without the checkpoint's own code and attention implementation.
    values = {
        k: v for k, v in checkpoint.config.items() if k not in ("model_type", "auto_map") and "attn_impl" not in k
    }
    config = model_class.config_class.from_dict(values)
    unused = UNUSED_NORM if model_class is colqwen_model.NemotronQwen3Model else ()
    model = checkpoint.pretrained(model_class, config=config, key_mapping=KEY_MAPPING, unused=unused)
    model._weight_conversions = []  # save weights with our names: the patterns cannot be inverted
    configured = (getattr(part, "is_causal", True) for part in (model.config.text_config, model.config))
    causal = all(configured) and not layout.bidirectional
    if layout.bidirectional and checkpoint.bidirectional is False:
        raise InvalidArgumentError(
            f"{checkpoint.name} was trained without a causal mask: remove bidirectional=False (--causal)."
        )
    if checkpoint.bidirectional or (checkpoint.bidirectional is None and not causal):
        model.remove_causal_mask()
    return model


def is_colqwen(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is a Qwen vision-language model, or adapters."""
    return find_layout(checkpoint.name, checkpoint.model_type) is not None or "peft_type" in checkpoint.config


BACKBONE = Backbone(load_colqwen, is_colqwen)
