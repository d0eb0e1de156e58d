"""A tiny checkpoint with remote code of Nemotron ColEmbed's kind: SigLIP, pixel shuffle, MLP, bidirectional Llama.

`make_nemotron` writes weights, tokenizer and the Python file that `trust_remote_code=True` runs.
"""

import shutil
from pathlib import Path

import torch

from anchorfold.testing.tiny import TEXT, VISION, make_tokenizer

SOURCE = Path(__file__).parent / "remote_code" / "modeling_tiny_colembed.py"


def make_nemotron(folder):
    from tests.backbones.remote_code.modeling_tiny_colembed import TinyColEmbed, TinyColEmbedConfig

    torch.manual_seed(0)
    tokenizer = make_tokenizer(["<pad>", "<s>", "</s>", "<img>", "</img>", "<IMG_CONTEXT>"], pad_token="<pad>")
    tokenizer.padding_side = "left"
    config = TinyColEmbedConfig(
        llm_config={**TEXT, "num_key_value_heads": 2, "vocab_size": len(tokenizer), "pad_token_id": 1},
        vision_config={**VISION, "image_size": 56},
        force_image_size=56,
        max_input_tiles=8,
        img_context_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
    )
    config.auto_map = {
        "AutoConfig": "modeling_tiny_colembed.TinyColEmbedConfig",
        "AutoModel": "modeling_tiny_colembed.TinyColEmbed",
    }
    model = TinyColEmbed(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    shutil.copy(SOURCE, folder)
    return folder
