"""ColPali in the layout of colpali-engine, such as `vidore/colpali-v1.3`: LoRA adapters on PaliGemma with a projection.

Weights are renamed to transformers' `ColPaliForRetrieval`, whose processor writes the same prompts.
"""

from __future__ import annotations

import re
from dataclasses import replace

from anchorfold.backbones.adapters import adapter_chain, add_adapters, unload_adapters
from anchorfold.backbones.checkpoint import Backbone, Checkpoint
from anchorfold.backbones.retrieval_heads import ColPali
from anchorfold.errors import CheckpointError

DIMENSION = 128  # of the projection; the configuration does not contain it
# colpali-engine saves `model.language_model.model.layers`, and adapters since transformers 4.52
# `model.model.language_model.layers`. SigLIP was nested in `vision_model` before transformers 5.
KEY_MAPPING = {
    r"^(?:model\.){1,2}language_model\.(?:model\.)?(?=(?:layers|embed_tokens|norm)\b)": "vlm.language_model.",
    r"^(?:model\.){1,2}vision_tower\.(?:vision_model\.)?": "vlm.vision_tower.",
    r"^(?:model\.){1,2}multi_modal_projector\.": "vlm.multi_modal_projector.",
    r"^custom_text_proj\.": "embedding_proj_layer.",
}


def load_colpali(checkpoint: Checkpoint) -> ColPali:
    """Load a base model with its projection, or adapters on it."""
    from transformers import ColPaliConfig, ColPaliForRetrieval, ColPaliProcessor

    *adapters, base = chain = adapter_chain(checkpoint)
    values = {k: v for k, v in base.config.items() if k not in ("auto_map", "architectures")}
    config = ColPaliConfig(vlm_config=values, embedding_dim=DIMENSION)
    model = base.pretrained(ColPaliForRetrieval, config=config, key_mapping=KEY_MAPPING)
    for part in reversed(adapters):
        if part is not adapters[-1]:
            unload_adapters(model)
        merged = replace(part, merge_adapters=checkpoint.merge_adapters or part is not checkpoint)
        add_adapters(model, merged, colpali_key)
    source = next((part for part in chain if part.json("tokenizer_config.json")), None)
    if source is None:
        raise CheckpointError(f"{base.name} has no tokenizer: add the tokenizer and preprocessor_config.json.")
    processor = ColPali.load_processor(ColPaliProcessor, source)
    settings = checkpoint.choose_layer_settings(ColPali.family, len(model.vlm.language_model.layers), model)
    return ColPali(model, processor, settings, checkpoint.name)


def colpali_key(key: str) -> str:
    """Map the name of an adapter's weight to transformers' model.

    >>> colpali_key("base_model.model.model.language_model.model.layers.0.mlp.up_proj.lora_A.weight")
    'vlm.language_model.layers.0.mlp.up_proj.lora_A.weight'
    """
    key = re.sub(r"^base_model\.model\.", "", key)
    for pattern, name in KEY_MAPPING.items():
        key = re.sub(pattern, name, key)
    return key


def is_colpali(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is PaliGemma with a projection, or adapters on it."""
    config = checkpoint.config
    if "peft_type" in config:
        return adapter_chain(checkpoint)[-1].model_type == "paligemma"
    return checkpoint.model_type == "paligemma" and "ColPali" in (config.get("architectures") or ())


BACKBONE = Backbone(load_colpali, is_colpali)
