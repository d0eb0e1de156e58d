"""ColQwen2.5: Qwen2.5-VL with a retrieval projection, with or without LoRA adapters, causal or bidirectional."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from transformers import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.base import PageBatch, PromptedRetriever
from anchorfold.backbones.checkpoint import Backbone, Checkpoint
from anchorfold.backbones.pickled import require_safetensors
from anchorfold.backbones.retrieval_heads import merged_grids
from anchorfold.backbones.universal import add_universal_tokens, universal_count, universal_text

PAGE_PROMPT = "<|im_start|>user\n<|vision_start|>{image}<|vision_end|>Describe the image.<|im_end|><|endoftext|>"
QUERY_PROMPT = "Query: {text}" + "<|endoftext|>" * 10
IMAGE_TOKEN = "<|image_pad|>"
MAX_VISUAL_TOKENS = 768
EMBEDDING_DIM = 128
MODEL_TYPE = "qwen2_5_vl"
KEY_MAPPING = {
    r"^model\.(?=visual|language_model)": "",
    r"^model\.(?=layers|norm|embed_tokens)": "language_model.",
}


class ColQwen25Model(Qwen2_5_VLModel):
    """Qwen2.5-VL and `custom_text_proj`, under the names that colpali-engine's checkpoints use."""

    def __init__(self, config: Qwen2_5_VLConfig) -> None:
        super().__init__(config)
        self.custom_text_proj = nn.Linear(
            config.text_config.hidden_size, getattr(config, "embedding_dim", EMBEDDING_DIM)
        )
        self.post_init()

    def forward(self, **inputs: Any) -> Tensor:
        """`(B, T, 128)` L2-normalised."""
        hidden = super().forward(**inputs, use_cache=False).last_hidden_state
        return torch.nn.functional.normalize(self.custom_text_proj(hidden), dim=-1)

    def remove_causal_mask(self) -> None:
        """Let every token see every other. The masks follow the config; the modules' flag, kernels without a mask."""
        self.config.text_config.is_causal = False
        self.language_model.config.is_causal = False
        for layer in self.language_model.layers:
            layer.self_attn.is_causal = False


class ColQwen25(PromptedRetriever):
    """ColQwen2.5 with dynamic grids of at most 768 tokens."""

    family = "colqwen2.5"

    def __init__(
        self, model: ColQwen25Model, tokenizer: Any, image_processor: Any, settings: LayerSettings, name: str
    ) -> None:
        self.universal = universal_count(model.config)
        super().__init__(model, replace(settings, universal=self.universal), name)
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
        """As the base class; with unmerged adapters the projection is a LoRA layer and is called as such."""
        if isinstance(self.projection, nn.Linear):
            return super().project(hidden)
        return self.projection(hidden.to(self.projection.weight.dtype)).to(hidden.dtype)

    def prepare_pages(self, images: Sequence[Image.Image]) -> PageBatch:
        """Page prompts with one image token per merged patch; `mm_token_type_ids` let M-RoPE see the grid."""
        pixels = self.image_processor(images=list(images), return_tensors="pt")
        grid = pixels["image_grid_thw"]
        merge = self.image_processor.merge_size
        counts = (grid.prod(1) // merge**2).tolist()
        prompts = [PAGE_PROMPT.format(image=IMAGE_TOKEN * n) + universal_text(self.universal) for n in counts]
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
        """Query prompts with ten augmentation tokens."""
        found = self.tokenizer([QUERY_PROMPT.format(text=t) for t in texts], return_tensors="pt", padding=True)
        inputs = {k: v.to(self.device) for k, v in found.items() if k != "token_type_ids"}
        return inputs, inputs["attention_mask"]


def load_colqwen25(checkpoint: Checkpoint) -> ColQwen25:
    """A Qwen2.5-VL with its projection, or adapters and the base model that they name."""
    if "peft_type" in checkpoint.config:
        return _with_adapters(checkpoint)
    from transformers import AutoImageProcessor, AutoTokenizer

    model = checkpoint.pretrained(ColQwen25Model, key_mapping=KEY_MAPPING)
    causal = getattr(model.config.text_config, "is_causal", True)
    if checkpoint.bidirectional or (checkpoint.bidirectional is None and not causal):
        model.remove_causal_mask()
    name, revision = checkpoint.name, checkpoint.revision
    tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, padding_side="left")
    images = AutoImageProcessor.from_pretrained(name, revision=revision, backend="pil")
    side = images.patch_size * images.merge_size
    images.size["longest_edge"] = min(images.size["longest_edge"], MAX_VISUAL_TOKENS * side * side)
    settings = checkpoint.layer_settings(ColQwen25.family, len(model.language_model.layers))
    return ColQwen25(model, tokenizer, images, settings, name)


def _with_adapters(checkpoint: Checkpoint) -> ColQwen25:
    base = checkpoint.base(checkpoint.config["base_model_name_or_path"])
    if base.model_type != MODEL_TYPE:
        raise ValueError(
            f"{checkpoint.name} holds adapters for a {base.model_type} model; only ColQwen2.5's are read. For ColPali, "
            "load the merged checkpoint vidore/colpali-v1.3-hf."
        )
    if not checkpoint.allow_pickle:
        require_safetensors(checkpoint.name, checkpoint.revision)
    # Adapters do not show whether they were trained with a causal mask, or with universal tokens: the configuration
    # that `training/colqwen25` writes beside them does.
    config = checkpoint.json("config.json") or {}
    if checkpoint.bidirectional is None and config.get("text_config", {}).get("is_causal") is False:
        base = replace(base, bidirectional=True)
    retriever = load_colqwen25(base)
    if universal_count(config):
        retriever.add_universal_tokens(universal_count(config))
    folder = checkpoint.folder
    if folder is None:
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(checkpoint.name, revision=checkpoint.revision, allow_patterns=["adapter_*"]))
    add_adapter(retriever.model, folder, checkpoint.merge_adapters)
    retriever.model.to(checkpoint.device).eval()
    retriever.name = checkpoint.name
    return retriever


def add_adapter(model: nn.Module, folder: Path, merge: bool) -> None:
    """Put LoRA adapters from a folder into the model, in place; `merge` folds them into the weights."""
    try:
        from peft import PeftConfig, inject_adapter_in_model, set_peft_model_state_dict
        from peft.tuners.tuners_utils import BaseTunerLayer
    except ImportError:
        raise ImportError(f"{folder} holds LoRA adapters: `pip install 'anchorfold[lora]'` to load them.") from None
    from safetensors.torch import load_file

    safe = folder / "adapter_model.safetensors"
    saved = load_file(safe) if safe.is_file() else torch.load(folder / "adapter_model.bin", "cpu", weights_only=True)
    state = {adapter_key(k): v for k, v in saved.items()}
    inject_adapter_in_model(PeftConfig.from_pretrained(str(folder)), model)
    outcome = set_peft_model_state_dict(model, state)
    if outcome.unexpected_keys:
        raise ValueError(f"{folder} does not fit this model: its adapters name {outcome.unexpected_keys[0]}.")
    for module in model.modules():
        if merge and isinstance(module, BaseTunerLayer):
            module.merge(safe_merge=True)


def adapter_key(key: str) -> str:
    """A module path in our model, from one saved by any version of the trainers."""
    key = re.sub(r"^base_model\.model\.", "", key)
    key = re.sub(r"^model\.language_model\.", "language_model.", key)
    key = re.sub(r"^model\.visual\.", "visual.", key)
    return re.sub(r"^model\.(layers|norm|embed_tokens)\b", r"language_model.\1", key)


BACKBONE = Backbone(
    load_colqwen25, lambda checkpoint: checkpoint.model_type == MODEL_TYPE or "peft_type" in checkpoint.config
)
