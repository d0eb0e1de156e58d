"""Tiny random checkpoints of the Qwen-VL families, in the layouts that they are published in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from anchorfold.testing.tiny_parts import TEXT, make_tokenizer, save

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def _qwen_parts(patch: int = 14) -> tuple[Any, Any]:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
    tokenizer = make_tokenizer([*special, "<|video_pad|>"], pad_token="<|endoftext|>", eos_token="<|im_end|>")
    side = (2 * patch) ** 2
    images = Qwen2VLImageProcessorPil(
        patch_size=patch,
        merge_size=2,
        temporal_patch_size=2,
        size={"shortest_edge": 4 * side, "longest_edge": 64 * side},
    )
    return tokenizer, images


def _qwen_config(tokenizer: Any, vision: dict[str, Any], **text: Any) -> dict[str, Any]:
    token = tokenizer.convert_tokens_to_ids
    return {
        "text_config": {
            **TEXT, "num_key_value_heads": 2, "vocab_size": len(tokenizer), "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}, **text,
        },
        "vision_config": vision,
        "image_token_id": token("<|image_pad|>"),
        "video_token_id": token("<|video_pad|>"),
        "vision_start_token_id": token("<|vision_start|>"),
        "vision_end_token_id": token("<|vision_end|>"),
    }  # fmt: skip


QWEN2_VISION = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2, "patch_size": 14}
QWEN25_VISION = {
    "depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32, "patch_size": 14,
    "window_size": 56, "fullatt_block_indexes": [1],
}  # fmt: skip
QWEN3_VISION = {
    "depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32, "patch_size": 16,
    "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1],
}  # fmt: skip
QWEN3_TEXT = {
    "head_dim": 8,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True,
    },
}  # fmt: skip


def make_colqwen2(folder: Path) -> None:
    """Qwen2-VL with a projection, as transformers has it: grouped keys, dynamic grids, causal."""
    from transformers import ColQwen2Config, ColQwen2ForRetrieval, ColQwen2Processor

    tokenizer, images = _qwen_parts()
    vlm = {"model_type": "qwen2_vl", **_qwen_config(tokenizer, QWEN2_VISION)}
    save(
        ColQwen2ForRetrieval(ColQwen2Config(vlm_config=vlm, embedding_dim=16)),
        folder,
        ColQwen2Processor(images, tokenizer),
    )


def make_colqwen2_engine(folder: Path) -> None:
    """The same in colpali-engine's layout."""
    from anchorfold.backbones.colqwen import ColQwen2Model

    tokenizer, images = _qwen_parts()
    config = ColQwen2Model.config_class(**_qwen_config(tokenizer, QWEN2_VISION), embedding_dim=16)
    save(ColQwen2Model(config), folder, tokenizer, images)


def make_colqwen25(folder: Path) -> None:
    """Qwen2.5-VL with a projection: grouped keys, dynamic grids, bidirectional by its config."""
    from anchorfold.backbones.colqwen import ColQwen25Model

    tokenizer, images = _qwen_parts()
    config = ColQwen25Model.config_class(**_qwen_config(tokenizer, QWEN25_VISION), embedding_dim=16)
    config.text_config.is_causal = False
    save(ColQwen25Model(config), folder, tokenizer, images)


def make_colqwen3(folder: Path) -> None:
    """Qwen3-VL with a projection: features of several vision layers, interleaved positions, causal."""
    from anchorfold.backbones.colqwen import ColQwen3Model

    tokenizer, images = _qwen_parts(patch=16)
    config = ColQwen3Model.config_class(**_qwen_config(tokenizer, QWEN3_VISION, **QWEN3_TEXT), embedding_dim=16)
    save(ColQwen3Model(config), folder, tokenizer, images)


def make_nemotron_qwen3(folder: Path) -> None:
    """Qwen3-VL without a projection or a causal mask, in NVIDIA's layout, which carries a head and a norm unused."""
    from safetensors.torch import load_file, save_file

    from anchorfold.backbones.colqwen import NemotronQwen3Model

    tokenizer, images = _qwen_parts(patch=16)
    tokenizer.chat_template = CHAT_TEMPLATE
    values = _qwen_config(tokenizer, QWEN3_VISION, **QWEN3_TEXT)
    save(NemotronQwen3Model(NemotronQwen3Model.config_class(**values)), folder, tokenizer, images)
    weights = {f"model.{key}": weight for key, weight in load_file(folder / "model.safetensors").items()}
    weights["model.language_model.norm.weight"] = torch.rand(TEXT["hidden_size"])
    weights["lm_head.weight"] = weights["model.language_model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    names = {
        "model_type": "qwen3_vl_nemotron_embed",
        "architectures": ["Qwen3VLNemotronEmbedModel"],
        "pooling": "colbert",
    }
    (folder / "config.json").write_text(json.dumps({**config, **names}, indent=2))
