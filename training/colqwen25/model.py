"""Model to train: ColQwen2.5 without a causal mask, with adapters and optional universal tokens."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor, nn
from transformers.utils import is_flash_attn_2_available

import anchorfold
from anchorfold.attention.tap import AttentionTap
from anchorfold.backbones.adapters import unload_adapters
from anchorfold.backbones.colqwen import ColQwen
from anchorfold.backbones.colqwen_model import ColQwen25Model
from anchorfold.backbones.universal_tokens import universal_ids
from anchorfold.compressors import AGC
from anchorfold.compressors.agc import cluster
from anchorfold.errors import AnchorFoldError
from training.colqwen25.recipe import ModelRecipe, Recipe

log = logging.getLogger(__name__)


def load_base(recipe: ModelRecipe, device: torch.device) -> ColQwen:
    """Load the frozen base model with the mask, page size and attention of the recipe."""
    retriever = anchorfold.load(
        recipe.base, device=device, dtype=getattr(torch, recipe.dtype), bidirectional=recipe.bidirectional
    )
    if not isinstance(retriever, ColQwen) or not isinstance(retriever.model, ColQwen25Model):
        raise AnchorFoldError(f"{recipe.base} is a {retriever.family} model; this trains ColQwen2.5.")
    retriever.name = recipe.base
    unload_adapters(retriever.model)  # adapters of an earlier training
    images = retriever.image_processor
    side = images.patch_size * images.merge_size
    images.size["longest_edge"] = min(images.size["longest_edge"], recipe.visual_tokens * side * side)
    attention = recipe.attention
    if attention == "flash_attention_2" and (device.type != "cuda" or not is_flash_attn_2_available()):
        log.warning("FlashAttention-2 is not installed or there is no GPU: training with torch's attention (sdpa).")
        attention = "sdpa"
    retriever.model.set_attn_implementation(attention)
    retriever.model.requires_grad_(False)
    return retriever


def build(recipe: Recipe, device: torch.device) -> tuple[ColQwen, PeftModel]:
    """Build a retriever and the peft model that shares its weights."""
    retriever = load_base(recipe.model, device)
    tokens = universal_tokens(retriever, recipe.agc.tokens) if recipe.agc.tokens else None
    try:
        lora = LoraConfig(**recipe.lora, trainable_token_indices=tokens)
    except TypeError as problem:
        raise AnchorFoldError(f"the section lora of the recipe does not fit peft's LoraConfig: {problem}.") from problem
    model = get_peft_model(retriever.model, lora)
    model.peft_config["default"].base_model_name_or_path = (
        os.path.abspath(recipe.model.base) if os.path.isdir(recipe.model.base) else recipe.model.base
    )
    return retriever, model


def universal_tokens(retriever: ColQwen, count: int) -> list[int]:
    """Return the ids of the universal tokens: those of an earlier training with the same number, else new ones."""
    if retriever.universal == count:
        return universal_ids(retriever.tokenizer, count)
    return retriever.add_universal_tokens(count)


def saliency_of_pages(
    retriever: ColQwen, model: nn.Module, inputs: dict[str, Tensor], visual: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Compute all vectors `(B, T, d)` of pages and the saliency `(n,)` of each page, both with gradients.

    Attention is captured in the last layer only. That layer is excluded from gradient checkpointing, because attention
    that is recomputed in the backward pass would not be captured.
    """
    retriever.model.language_model.layers[-1].gradient_checkpointing = False
    signals = AGC(cap=1).signals(retriever.layer_settings)
    with AttentionTap(retriever.model, retriever.attention_layers, signals, gradients=True) as tap:
        tap.set_visual_tokens(visual, inputs["attention_mask"])
        vectors = model(**inputs)
    return vectors, [page[signals[0]] for page in tap.pages]


def clustered_pages(vectors: Tensor, visual: Tensor, saliency: list[Tensor], cap: int) -> tuple[Tensor, Tensor]:
    """Compress pages with AGC: `(B, m, d)` vectors and a mask `(B, m)`."""
    pages = [
        cluster(page[seen], weight.to(page), min(cap, len(weight))).vectors
        for page, seen, weight in zip(vectors, visual, saliency, strict=True)
    ]
    lengths = torch.tensor([len(page) for page in pages], device=vectors.device)
    padded = nn.utils.rnn.pad_sequence(pages, batch_first=True)
    return padded, torch.arange(padded.shape[1], device=vectors.device) < lengths[:, None]


def export(retriever: ColQwen, model: PeftModel, folder: Path) -> None:
    """Write a folder that `anchorfold.load` reads: adapters, and a configuration with mask and universal tokens."""
    model.save_pretrained(folder, save_embedding_layers=False)
    retriever.model.config.save_pretrained(folder)
    retriever.tokenizer.save_pretrained(folder)
    retriever.image_processor.save_pretrained(folder)
