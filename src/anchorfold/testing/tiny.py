"""Tiny random checkpoints of the true architectures: to try the library, and to test it, without any download.

    python -m anchorfold.testing.tiny colpali ./tiny-colpali

They load through `anchorfold.load` like the real ones, take milliseconds, and know nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

WORDS = [
    "question",
    "query",
    "describe",
    "the",
    "image",
    "net",
    "revenue",
    "by",
    "region",
    "user",
    "page",
    "table",
    "report",
    "a",
    "b",
    "c",
    "d",
    "e",
    "1",
    "2",
    "3",
]
TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4}
VISION = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 14,
}


def make_tokenizer(special: list[str], **roles: str) -> Any:
    """A word tokenizer that knows a few words and the architecture's special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(["<unk>", *special, *WORDS]))}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", **roles)
    tokenizer.add_special_tokens({"additional_special_tokens": [s for s in special if s not in roles.values()]})
    return tokenizer


def make_colpali(folder: Path) -> None:
    """PaliGemma with a projection: one key-value head, 16 visual tokens."""
    from transformers import ColPaliConfig, ColPaliForRetrieval, ColPaliProcessor
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    tokenizer = make_tokenizer(
        ["<pad>", "<bos>", "<eos>", "<image>"], pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    tokenizer.image_token, tokenizer.image_token_id = "<image>", tokenizer.convert_tokens_to_ids("<image>")
    images = SiglipImageProcessorPil(size={"height": 56, "width": 56})
    images.image_seq_length = 16
    processor = ColPaliProcessor(images, tokenizer)
    config = ColPaliConfig(
        vlm_config={
            "model_type": "paligemma",
            "text_config": {
                "model_type": "gemma", **TEXT, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": len(tokenizer),
                "pad_token_id": tokenizer.pad_token_id,
            },
            "vision_config": {"model_type": "siglip_vision_model", **VISION, "image_size": 56, "projection_dim": 32},
            "image_token_id": processor.image_token_id,
            "projection_dim": 32,
        },
        embedding_dim=16,
    )  # fmt: skip
    _save(ColPaliForRetrieval(config), folder, processor)


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
    _save(
        ColQwen2ForRetrieval(ColQwen2Config(vlm_config=vlm, embedding_dim=16)),
        folder,
        ColQwen2Processor(images, tokenizer),
    )


def make_colqwen2_engine(folder: Path) -> None:
    """The same in colpali-engine's layout."""
    from anchorfold.backbones.colqwen import ColQwen2Model

    tokenizer, images = _qwen_parts()
    config = ColQwen2Model.config_class(**_qwen_config(tokenizer, QWEN2_VISION), embedding_dim=16)
    _save(ColQwen2Model(config), folder, tokenizer, images)


def make_colqwen25(folder: Path) -> None:
    """Qwen2.5-VL with a projection: grouped keys, dynamic grids, bidirectional by its config."""
    from anchorfold.backbones.colqwen import ColQwen25Model

    tokenizer, images = _qwen_parts()
    config = ColQwen25Model.config_class(**_qwen_config(tokenizer, QWEN25_VISION), embedding_dim=16)
    config.text_config.is_causal = False
    _save(ColQwen25Model(config), folder, tokenizer, images)


def make_colqwen3(folder: Path) -> None:
    """Qwen3-VL with a projection: features of several vision layers, interleaved positions, causal."""
    from anchorfold.backbones.colqwen import ColQwen3Model

    tokenizer, images = _qwen_parts(patch=16)
    config = ColQwen3Model.config_class(**_qwen_config(tokenizer, QWEN3_VISION, **QWEN3_TEXT), embedding_dim=16)
    _save(ColQwen3Model(config), folder, tokenizer, images)


def make_nemotron_qwen3(folder: Path) -> None:
    """Qwen3-VL without a projection or a causal mask, in NVIDIA's layout, which carries a head and a norm unused."""
    from safetensors.torch import load_file, save_file

    from anchorfold.backbones.colqwen import NemotronQwen3Model

    tokenizer, images = _qwen_parts(patch=16)
    tokenizer.chat_template = CHAT_TEMPLATE
    values = _qwen_config(tokenizer, QWEN3_VISION, **QWEN3_TEXT)
    _save(NemotronQwen3Model(NemotronQwen3Model.config_class(**values)), folder, tokenizer, images)
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


def make_colmodernvbert(folder: Path) -> None:
    """ModernBERT with a vision tower: tiles and a thumbnail of 4 tokens each, bidirectional."""
    from transformers import ColModernVBertConfig, ColModernVBertForRetrieval, ColModernVBertProcessor
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    marks = [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]
    special = [
        "<|padding|>",
        "<|begin_of_text|>",
        "<fake_token_around_image>",
        "<image>",
        "<end_of_utterance>",
        "<global-img>",
    ]
    tokenizer = make_tokenizer(
        [*special, *marks, "[CLS]", "[SEP]"], pad_token="<|padding|>", bos_token="<|begin_of_text|>"
    )
    images = Idefics3ImageProcessorPil(size={"longest_edge": 112}, max_image_size={"longest_edge": 56})
    processor = ColModernVBertProcessor(images, tokenizer, image_seq_len=4)
    text = {
        "model_type": "modernbert", **TEXT, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": 0, "eos_token_id": 0, "cls_token_id": 0, "sep_token_id": 0, "local_attention": 8,
    }  # fmt: skip
    config = ColModernVBertConfig(
        vlm_config={
            "model_type": "modernvbert",
            "text_config": text,
            "vision_config": {"model_type": "siglip_vision_model", **VISION, "image_size": 56},
            "image_token_id": processor.image_token_id,
            "pixel_shuffle_factor": 2,
        },
        embedding_dim=16,
    )
    _save(ColModernVBertForRetrieval(config), folder, processor)


def make_nemotron(folder: Path) -> None:
    """SigLIP tiles in a bidirectional Llama: at most eight tiles and a thumbnail of 4 tokens each."""
    from anchorfold.backbones.nemotron_model import NemotronConfig, NemotronModel

    special = ["<pad>", "<s>", "</s>", "<img>", "</img>", "<IMG_CONTEXT>"]
    tokenizer = make_tokenizer(special, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    rope = {
        "rope_type": "llama3", "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    config = {
        "architectures": ["LlamaNemotronVLModel"],
        "model_type": "llama_nemotron_vl",
        "vision_config": {"model_type": "siglip_vision_model", **VISION, "image_size": 56},
        "llm_config": {
            "architectures": ["LlamaBidirectionalModel"], "model_type": "llama_bidirec", **TEXT,
            "num_key_value_heads": 2, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id,
            "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": rope,
        },
        "select_layer": -1,
        "downsample_ratio": 0.5,
        "force_image_size": 56,
        "dynamic_image_size": True,
        "max_input_tiles": 8,
        "use_thumbnail": True,
        "img_context_token_id": tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        "p_max_length": 10240,
        "q_max_length": 512,
        "passage_prefix": "passage:",
        "query_prefix": "query:",
        "pooling": "colbert",
    }  # fmt: skip
    _save(NemotronModel(NemotronConfig.from_files(str(folder), config, {})), folder, tokenizer)
    # As published, rather than as this version of transformers would write it.
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _save(model: Any, folder: Path, *parts: Any) -> None:
    for part in (model, *parts):
        part.save_pretrained(folder)


MAKERS: dict[str, Callable[[Path], None]] = {
    "colpali": make_colpali,
    "colqwen2": make_colqwen2,
    "colqwen2-engine": make_colqwen2_engine,
    "colqwen2.5": make_colqwen25,
    "colqwen3": make_colqwen3,
    "colmodernvbert": make_colmodernvbert,
    "nemotron": make_nemotron,
    "nemotron-qwen3": make_nemotron_qwen3,
}


def make(kind: str, folder: str | Path, seed: int = 0) -> Path:
    """Write a tiny checkpoint of one kind to a folder; the same seed gives the same weights."""
    folder = Path(folder)
    torch.manual_seed(seed)
    MAKERS[kind](folder)
    return folder


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(MAKERS))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    make(arguments.kind, arguments.folder)
    print(f"wrote a tiny random {arguments.kind} checkpoint to {arguments.folder}")


if __name__ == "__main__":
    main()
