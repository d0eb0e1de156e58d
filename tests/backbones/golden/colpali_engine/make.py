"""Write the golden checkpoints and vectors of colpali-engine; see README.md for the environment.

    PYTHONPATH=src:. python -m tests.backbones.golden.colpali_engine.make

Models and prompts are colpali-engine's; tokenizers, image processors and sizes are those of `anchorfold.testing.tiny`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from colpali_engine.models import (
    ColPali,
    ColPaliProcessor,
    ColQwen2,
    ColQwen2_5,
    ColQwen2_5_Processor,
    ColQwen2Processor,
    ColQwen3,
    ColQwen3Processor,
)
from peft import LoraConfig, get_peft_model
from transformers import PaliGemmaConfig
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from anchorfold.testing import tiny
from tests.backbones.golden.colpali_engine.inputs import QUERIES, pages

HERE = Path(__file__).parent
LAYERS = {"num_hidden_layers": 2, "num_key_value_heads": 2}
# The patterns of vidore/colpali-v1.3 and vidore/colqwen2.5-v0.2.
COLPALI_TARGETS = (
    r"(.*(language_model).*(down_proj|gate_proj|up_proj|k_proj|q_proj|v_proj|o_proj).*$|.*(custom_text_proj).*$)"
)
QWEN_TARGETS = (
    r"(.*(model)(?!.*visual).*(down_proj|gate_proj|up_proj|k_proj|q_proj|v_proj|o_proj).*$|.*(custom_text_proj).*$)"
)


def write(name: str, model: Any, parts: list[Any], targets: str, inputs: Any) -> None:
    """Save a base, its adapters, and the vectors of both; `inputs` are (name, model inputs) pairs."""
    base = HERE / name
    torch.manual_seed(1)
    for weight in model.parameters():
        weight.data.normal_(0, 0.2)
    model.eval().save_pretrained(base)
    for part in parts:
        part.save_pretrained(base)
    vectors = {f"base_{key}": model(**given)[0] for key, given in inputs()}
    lora = LoraConfig(r=2, lora_alpha=4, target_modules=targets, init_lora_weights=False)
    tuned = get_peft_model(model, lora).eval()
    tuned.peft_config["default"].base_model_name_or_path = name
    tuned.save_pretrained(HERE / f"{name}-lora")
    vectors |= {f"lora_{key}": tuned(**given)[0] for key, given in inputs()}
    np.savez_compressed(HERE / f"{name}.npz", **{key: v.numpy() for key, v in vectors.items()})


def write_colpali() -> None:
    """ColPali: PaliGemma, every token attends to every other (`token_type_ids` of zeros)."""
    special = ["<pad>", "<bos>", "<eos>", "<image>"]
    tokenizer = tiny.make_tokenizer(special, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")
    image_id = tokenizer.convert_tokens_to_ids("<image>")
    images = SiglipImageProcessorPil(size={"height": 56, "width": 56})
    images.image_seq_length = 16
    text = {
        "model_type": "gemma", **tiny.TEXT, **LAYERS, "num_key_value_heads": 1, "head_dim": 8,
        "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id,
    }  # fmt: skip
    config = PaliGemmaConfig(
        text_config=text, vision_config={**tiny.VISION, "num_hidden_layers": 1, "projection_dim": 32},
        image_token_id=image_id, image_token_index=image_id, projection_dim=32,
    )  # fmt: skip

    def encoded(prompt: str, **others: Any) -> dict[str, Any]:
        given = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        ids = given["input_ids"]
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "token_type_ids": torch.zeros_like(ids),
        } | others

    def inputs() -> Any:
        # PaliGemma's processor puts the image tokens first, and a line feed last.
        prompt = ColPaliProcessor.visual_prompt_prefix.removeprefix("<image>")
        for i, page in enumerate(pages()):
            pixels = images(images=[page], return_tensors="pt")["pixel_values"]
            yield f"page_{i}", encoded("<image>" * 16 + prompt + "\n", pixel_values=pixels)
        for i, query in enumerate(QUERIES):
            yield f"query_{i}", encoded(f"<bos>Question: {query}" + "<pad>" * 10 + "\n")

    write("colpali", ColPali(config), [tokenizer, images], COLPALI_TARGETS, inputs)


def write_colqwen(
    name: str, cls: Any, processor: Any, vision: dict[str, Any], text: dict[str, Any], prefix: str
) -> None:
    """A model of the ColQwen family."""
    tokenizer, images = tiny._qwen_processors(vision)
    tokenizer.padding_side = "left"
    config = cls.config_class(**tiny._qwen_config(tokenizer, vision, **LAYERS, **text))

    def encoded(prompt: str, **others: Any) -> dict[str, Any]:
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        visual = (ids == config.image_token_id).int()
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": visual} | others

    def inputs() -> Any:
        for i, page in enumerate(pages()):
            pixels = images(images=[page], return_tensors="pt")
            count = int(pixels["image_grid_thw"].prod()) // 4
            prompt = processor.visual_prompt_prefix.replace("<|image_pad|>", "<|image_pad|>" * count)
            # As the processor batches pages: (pages, patches, values).
            grid = {"pixel_values": pixels["pixel_values"][None], "image_grid_thw": pixels["image_grid_thw"]}
            yield f"page_{i}", encoded(prompt, **grid)
        for i, query in enumerate(QUERIES):
            yield f"query_{i}", encoded(prefix + query + processor.query_augmentation_token * 10)

    write(name, cls(config), [tokenizer, images], QWEN_TARGETS, inputs)


if __name__ == "__main__":
    with torch.no_grad():
        write_colpali()
        write_colqwen("colqwen2", ColQwen2, ColQwen2Processor, tiny.QWEN2_VISION, {}, "Query: ")
        write_colqwen("colqwen2.5", ColQwen2_5, ColQwen2_5_Processor, tiny.QWEN25_VISION, {}, "Query: ")
        write_colqwen("colqwen3", ColQwen3, ColQwen3Processor, tiny.QWEN3_VISION, tiny.QWEN3_TEXT, "")
