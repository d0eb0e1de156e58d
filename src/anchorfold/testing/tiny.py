"""Tiny random checkpoints of the true architectures: to try the library, and to test it, without any download.

    python -m anchorfold.testing.tiny colpali ./tiny-colpali

They load through `anchorfold.load` like the real ones, take milliseconds, and know nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch

from anchorfold.testing.tiny_parts import TEXT, VISION, make_tokenizer, save
from anchorfold.testing.tiny_qwen import (
    make_colqwen2,
    make_colqwen2_engine,
    make_colqwen3,
    make_colqwen25,
    make_nemotron_qwen3,
)


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
    save(ColPaliForRetrieval(config), folder, processor)


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
    save(ColModernVBertForRetrieval(config), folder, processor)


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
    save(NemotronModel(NemotronConfig.from_files(str(folder), config, {})), folder, tokenizer)
    # As published, rather than as this version of transformers would write it.
    (folder / "config.json").write_text(json.dumps(config, indent=2))


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
