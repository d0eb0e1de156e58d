"""Tiny random checkpoints of the supported architectures, to try and test the package without downloads.

    python -m anchorfold.testing.tiny colpali ./tiny-colpali

They load through `anchorfold.load` like published checkpoints and run in milliseconds; their vectors are meaningless.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

WORDS = [
    "question", "query", "describe", "the", "image", "net", "revenue", "by", "region", "user", "page", "table",
    "report", "a", "b", "c", "d", "e", "1", "2", "3",
]  # fmt: skip
TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 6, "num_attention_heads": 4}
VISION = {
    "model_type": "siglip_vision_model", "hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "patch_size": 14, "image_size": 56,
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
QWEN35_VISION = {k: v for k, v in QWEN3_VISION.items() if k != "deepstack_visual_indexes"}
QWEN3_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
QWEN3_TEXT = {"head_dim": 8, "rope_parameters": QWEN3_ROPE}
# Full attention in every second layer instead of every fourth, for windows of several layers.
QWEN35_TEXT = {
    "head_dim": 8, "rope_parameters": {**QWEN3_ROPE, "partial_rotary_factor": 1.0}, "full_attention_interval": 2,
    "num_hidden_layers": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}  # fmt: skip
GEMMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<start_of_image>{% else %}{{ part.text }}{% endif %}{% endfor %}<end_of_turn>\n"
    "{% endfor %}"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


IMAGE_TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}{% if part.type == 'image' %}<image>"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}<end_of_utterance>{% endfor %}"
)


def make_tokenizer(special: list[str], **roles: Any) -> Any:
    """Create a word tokenizer with a few words and the architecture's special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(dict.fromkeys(["<unk>", *special, *WORDS]))}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", **roles)
    tokenizer.add_special_tokens({"additional_special_tokens": [s for s in special if s not in roles.values()]})
    return tokenizer


def make_letter_tokenizer(special: list[str], **roles: str) -> Any:
    """Create a tokenizer of single bytes: transformers always reads that of Qwen3.5 as byte pairs."""
    from tokenizers import pre_tokenizers
    from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer

    vocabulary = {token: i for i, token in enumerate([*special, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    tokenizer = Qwen3_5Tokenizer(vocab=vocabulary, merges=[], **roles)
    tokenizer.add_special_tokens({"additional_special_tokens": [s for s in special if s not in roles.values()]})
    return tokenizer


def make_colpali(folder: Path) -> None:
    """Create PaliGemma with a projection: one key-value head, 16 visual tokens."""
    from transformers import ColPaliConfig, ColPaliForRetrieval, ColPaliProcessor
    from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

    tokenizer = make_tokenizer(
        ["<pad>", "<bos>", "<eos>", "<image>"], pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    tokenizer.image_token, tokenizer.image_token_id = "<image>", tokenizer.convert_tokens_to_ids("<image>")
    images = SiglipImageProcessorPil(size={"height": 56, "width": 56})
    images.image_seq_length = 16
    processor = ColPaliProcessor(images, tokenizer)
    text = {
        "model_type": "gemma", **TEXT, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    vlm = {
        "model_type": "paligemma", "text_config": text, "vision_config": {**VISION, "projection_dim": 32},
        "image_token_id": processor.image_token_id, "projection_dim": 32,
    }  # fmt: skip
    _save(folder, ColPaliForRetrieval(ColPaliConfig(vlm_config=vlm, embedding_dim=16)), processor)


def make_colmodernvbert(folder: Path) -> None:
    """Create ModernBERT with a vision tower: tiles and a thumbnail of 4 tokens each, bidirectional."""
    from transformers import ColModernVBertConfig, ColModernVBertForRetrieval, ColModernVBertProcessor

    tokenizer, images = _idefics_processors()
    processor = ColModernVBertProcessor(images, tokenizer, image_seq_len=4)
    text = {
        "model_type": "modernbert", **TEXT, "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": 0, "eos_token_id": 0, "cls_token_id": 0, "sep_token_id": 0, "local_attention": 8,
    }  # fmt: skip
    vlm = {
        "model_type": "modernvbert", "text_config": text, "vision_config": VISION,
        "image_token_id": processor.image_token_id, "pixel_shuffle_factor": 2,
    }  # fmt: skip
    _save(folder, ColModernVBertForRetrieval(ColModernVBertConfig(vlm_config=vlm, embedding_dim=16)), processor)


def make_colultravbert(folder: Path) -> None:
    """Create UltraBERT with a vision tower in the layout of sentence-transformers: tiles of 4 tokens, bidirectional."""
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.sentence_transformer.modules import Normalize
    from transformers import Idefics3Processor, UltraVBertConfig, UltraVBertModel

    tokenizer, images = _idefics_processors()  # its own image processor requires torchvision
    processor = Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=IMAGE_TEMPLATE)
    config = UltraVBertConfig(
        text_config={"model_type": "ultrabert", **TEXT, "vocab_size": len(tokenizer), "sliding_window": 4},
        vision_config={**VISION, "vision_use_head": False}, pixel_shuffle_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as parts:
        _save(Path(parts), UltraVBertModel(config), processor)
        name = "token_embeddings"
        modules = [
            Transformer(parts, processor_kwargs={"backend": "pil"}),
            Dense(32, 16, bias=False, activation_function=torch.nn.Identity(), module_input_name=name,
                  module_output_name=name),
            Normalize(module_input_name=name),
        ]  # fmt: skip
        MultiVectorEncoder(modules=modules, device="cpu").save(str(folder))


def make_nemotron(folder: Path) -> None:
    """Create SigLIP tiles and a bidirectional Llama: at most eight tiles and a thumbnail of 4 tokens each."""
    from anchorfold.backbones.nemotron_model import NemotronConfig, NemotronModel

    special = ["<pad>", "<s>", "</s>", "<img>", "</img>", "<IMG_CONTEXT>"]
    tokenizer = make_tokenizer(special, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    rope = {
        "rope_type": "llama3", "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    llama = {
        "architectures": ["LlamaBidirectionalModel"], "model_type": "llama_bidirec", **TEXT, "num_key_value_heads": 2,
        "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "rope_scaling": rope,
    }  # fmt: skip
    config = {
        "architectures": ["LlamaNemotronVLModel"], "model_type": "llama_nemotron_vl", "vision_config": VISION,
        "llm_config": llama, "select_layer": -1, "downsample_ratio": 0.5, "force_image_size": 56,
        "dynamic_image_size": True, "max_input_tiles": 8, "use_thumbnail": True,
        "img_context_token_id": tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"), "p_max_length": 10240,
        "q_max_length": 512, "passage_prefix": "passage:", "query_prefix": "query:", "pooling": "colbert",
    }  # fmt: skip
    _save(folder, NemotronModel(NemotronConfig.from_files(str(folder), config, {})), tokenizer)
    # As published, not as the installed version of transformers writes it.
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def make_colqwen2(folder: Path) -> None:
    """Create Qwen2-VL with a projection in the layout of transformers: grouped keys, dynamic grids, causal."""
    from transformers import ColQwen2Config, ColQwen2ForRetrieval, ColQwen2Processor

    tokenizer, images = _qwen_processors(QWEN2_VISION)
    vlm = {"model_type": "qwen2_vl", **_qwen_config(tokenizer, QWEN2_VISION)}
    model = ColQwen2ForRetrieval(ColQwen2Config(vlm_config=vlm, embedding_dim=16))
    _save(folder, model, ColQwen2Processor(images, tokenizer))


def make_colqwen(
    folder: Path, model_class: str, vision: dict[str, Any], text: dict[str, Any] | None = None, causal: bool = True
) -> None:
    """Create Qwen-VL with a projection in the layout of colpali-engine: grouped keys, dynamic grids."""
    from anchorfold.backbones import colqwen_model

    tokenizer, images = _qwen_processors(vision, by_letters=model_class == "ColQwen35Model")
    cls = getattr(colqwen_model, model_class)
    config = cls.config_class(**_qwen_config(tokenizer, vision, **(text or {})), embedding_dim=16)
    if not causal:
        config.text_config.is_causal = False
    _save(folder, cls(config), tokenizer, images)


def make_colgemma3(folder: Path) -> None:
    """Create Gemma 3 with a projection: 16 visual tokens that attend to each other, sliding windows, left padding."""
    from transformers import Gemma3Config, Gemma3Processor
    from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

    from anchorfold.backbones.colgemma_model import ColGemma3Model

    tokens = ["<pad>", "<bos>", "<eos>", "<start_of_image>", "<image_soft_token>", "<end_of_image>", "<start_of_turn>"]
    roles = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
    tokenizer = make_tokenizer(
        [*tokens, "<end_of_turn>"], pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", padding_side="left",
        extra_special_tokens=roles,
    )  # fmt: skip
    images = Gemma3ImageProcessorPil(size={"height": 112, "width": 112})
    processor = Gemma3Processor(images, tokenizer, chat_template=GEMMA_TEMPLATE, image_seq_length=16)
    text = {
        **TEXT, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": len(tokenizer), "sliding_window": 8,
        "pad_token_id": tokenizer.pad_token_id, "query_pre_attn_scalar": 8, "sliding_window_pattern": 2,
    }  # fmt: skip
    config = Gemma3Config(
        text_config=text, vision_config={**VISION, "image_size": 112, "vision_use_head": False}, mm_tokens_per_image=16,
        image_token_id=tokenizer.image_token_id, boi_token_id=tokenizer.boi_token_id,
        eoi_token_id=tokenizer.eoi_token_id, embedding_dim=16, architectures=["ColGemma3"],
    )  # fmt: skip
    model = ColGemma3Model(config)
    torch.nn.init.normal_(model.multi_modal_projector.mm_input_projection_weight, std=0.2)  # zeros by default
    _save(folder, model, processor)
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**written, "architectures": ["ColGemma3"]}, indent=2))


def make_nemotron_qwen3(folder: Path) -> None:
    """Create Qwen3-VL without a projection or causal mask in the layout of NVIDIA, with an unused head and norm."""
    from safetensors.torch import load_file, save_file

    from anchorfold.backbones.colqwen_model import NemotronQwen3Model

    tokenizer, images = _qwen_processors(QWEN3_VISION)
    tokenizer.chat_template = CHAT_TEMPLATE
    values = _qwen_config(tokenizer, QWEN3_VISION, **QWEN3_TEXT)
    _save(folder, NemotronQwen3Model(NemotronQwen3Model.config_class(**values)), tokenizer, images)
    weights = {f"model.{key}": weight for key, weight in load_file(folder / "model.safetensors").items()}
    weights["model.language_model.norm.weight"] = torch.rand(TEXT["hidden_size"])
    weights["lm_head.weight"] = weights["model.language_model.embed_tokens.weight"].clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "qwen3_vl_nemotron_embed", "architectures": ["Qwen3VLNemotronEmbedModel"]}
    (folder / "config.json").write_text(json.dumps({**config, "pooling": "colbert"}, indent=2))


def _idefics_processors() -> tuple[Any, Any]:
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    special = [
        "<|padding|>", "<|begin_of_text|>", "<fake_token_around_image>", "<image>", "<end_of_utterance>",
        "<global-img>",
    ]  # fmt: skip
    marks = [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]
    tokenizer = make_tokenizer(
        [*special, *marks, "[CLS]", "[SEP]"], pad_token="<|padding|>", bos_token="<|begin_of_text|>"
    )
    return tokenizer, Idefics3ImageProcessorPil(size={"longest_edge": 112}, max_image_size={"longest_edge": 56})


def _qwen_processors(vision: dict[str, Any], by_letters: bool = False) -> tuple[Any, Any]:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
    special.append("<|video_pad|>")
    make = make_letter_tokenizer if by_letters else make_tokenizer
    tokenizer = make(special, pad_token="<|endoftext|>", eos_token="<|im_end|>")
    patch = vision["patch_size"]
    area = (2 * patch) ** 2
    size = {"shortest_edge": 4 * area, "longest_edge": 64 * area}
    return tokenizer, Qwen2VLImageProcessorPil(patch_size=patch, merge_size=2, temporal_patch_size=2, size=size)


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


def _save(folder: Path, *parts: Any) -> None:
    for part in parts:
        part.save_pretrained(folder)


MAKERS: dict[str, Callable[[Path], None]] = {
    "colpali": make_colpali,
    "colqwen2": make_colqwen2,
    "colqwen2-engine": partial(make_colqwen, model_class="ColQwen2Model", vision=QWEN2_VISION),
    "colqwen2.5": partial(make_colqwen, model_class="ColQwen25Model", vision=QWEN25_VISION, causal=False),
    "colqwen3": partial(make_colqwen, model_class="ColQwen3Model", vision=QWEN3_VISION, text=QWEN3_TEXT),
    "colqwen3.5": partial(make_colqwen, model_class="ColQwen35Model", vision=QWEN35_VISION, text=QWEN35_TEXT),
    "colvec": partial(make_colqwen, model_class="ColQwen35Model", vision=QWEN35_VISION, text=QWEN35_TEXT, causal=False),
    "colgemma3": make_colgemma3,
    "colmodernvbert": make_colmodernvbert,
    "nemotron": make_nemotron,
    "nemotron-qwen3": make_nemotron_qwen3,
}
# Loaded through sentence-transformers.
MULTIVECTOR_MAKERS: dict[str, Callable[[Path], None]] = {"colultravbert": make_colultravbert}


def make(kind: str, folder: str | Path, seed: int = 0) -> Path:
    """Write a tiny checkpoint to a folder; weights depend on the seed only."""
    folder = Path(folder)
    torch.manual_seed(seed)
    (MAKERS | MULTIVECTOR_MAKERS)[kind](folder)
    return folder


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=sorted(MAKERS | MULTIVECTOR_MAKERS))
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    make(arguments.kind, arguments.folder)
    print(f"wrote a tiny random {arguments.kind} checkpoint to {arguments.folder}")


if __name__ == "__main__":
    main()
