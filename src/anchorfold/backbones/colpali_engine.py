"""ColPali and ColGemma3 in the layout of colpali-engine: a base model with a projection, or LoRA adapters on it.

For example `vidore/colpali-v1.3`. Weights of ColPali are renamed to transformers' `ColPaliForRetrieval`, whose
processor writes the same prompts; ColGemma3 has its own model class, with the names of colpali-engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from anchorfold.backbones.adapters import adapter_chain, add_adapters, unload_adapters
from anchorfold.backbones.checkpoint import Backbone, Checkpoint
from anchorfold.backbones.retrieval_heads import COLGEMMA3_HEAD, COLPALI_HEAD, HeadLayout, RetrievalHead
from anchorfold.errors import CheckpointError

DIMENSION = 128  # of ColPali's projection; the configuration does not contain it
# colpali-engine saves `model.language_model.model.layers`, and adapters since transformers 4.52
# `model.model.language_model.layers`. SigLIP was nested in `vision_model` before transformers 5.
COLPALI_KEYS = {
    r"^(?:model\.){1,2}language_model\.(?:model\.)?(?=(?:layers|embed_tokens|norm)\b)": "vlm.language_model.",
    r"^(?:model\.){1,2}vision_tower\.(?:vision_model\.)?": "vlm.vision_tower.",
    r"^(?:model\.){1,2}multi_modal_projector\.": "vlm.multi_modal_projector.",
    r"^custom_text_proj\.": "embedding_proj_layer.",
}
COLGEMMA3_KEYS = {
    r"^(?:model\.)?language_model\.(?:model\.)?(?=(?:layers|embed_tokens|norm)\b)": "language_model.",
    r"^(?:model\.)?vision_tower\.(?:vision_model\.)?": "vision_tower.",
    r"^(?:model\.)?multi_modal_projector\.": "multi_modal_projector.",
}


@dataclass(frozen=True)
class EngineLayout:
    """A family: how its model is loaded, and how names of weights are mapped to it.

    Args:
        head: location of layers, and prompts.
        load_model: load the model of a checkpoint.
        architecture: class name in the configuration of a complete checkpoint.
        keys: patterns and replacements of weight names.
    """

    head: HeadLayout
    load_model: Callable[[Checkpoint, dict[str, str]], Any]
    architecture: str
    keys: dict[str, str]

    def rename(self, key: str) -> str:
        """Map the name of an adapter's weight to the model.

        Examples:
            >>> LAYOUTS["paligemma"].rename("base_model.model.model.language_model.model.layers.0.mlp.up_proj.weight")
            'vlm.language_model.layers.0.mlp.up_proj.weight'
        """
        key = re.sub(r"^base_model\.model\.", "", key)
        for pattern, name in self.keys.items():
            key = re.sub(pattern, name, key)
        return key


def _load_paligemma(checkpoint: Checkpoint, keys: dict[str, str]) -> Any:
    from transformers import ColPaliConfig, ColPaliForRetrieval

    values = {k: v for k, v in checkpoint.config.items() if k not in ("auto_map", "architectures")}
    config = ColPaliConfig(vlm_config=values, embedding_dim=DIMENSION)
    return checkpoint.pretrained(ColPaliForRetrieval, config=config, key_mapping=keys)


def _load_gemma3(checkpoint: Checkpoint, keys: dict[str, str]) -> Any:
    from anchorfold.backbones.colgemma_model import ColGemma3Model

    model = checkpoint.pretrained(ColGemma3Model, key_mapping=keys)
    model._weight_conversions = []  # save weights with our names: the patterns cannot be inverted
    return model


# By `model_type` of the base model.
LAYOUTS = {
    "paligemma": EngineLayout(COLPALI_HEAD, _load_paligemma, "ColPali", COLPALI_KEYS),
    "gemma3": EngineLayout(COLGEMMA3_HEAD, _load_gemma3, "ColGemma3", COLGEMMA3_KEYS),
}


def load_engine(checkpoint: Checkpoint) -> RetrievalHead:
    """Load a base model with its projection, or adapters on it."""
    *adapters, base = chain = adapter_chain(checkpoint)
    layout = LAYOUTS[base.model_type]
    model = layout.load_model(base, layout.keys)
    for part in reversed(adapters):
        if part is not adapters[-1]:
            unload_adapters(model)
        merged = replace(part, merge_adapters=checkpoint.merge_adapters or part is not checkpoint)
        add_adapters(model, merged, layout.rename)
    source = next((part for part in chain if part.json("tokenizer_config.json")), None)
    if source is None:
        raise CheckpointError(f"{base.name} has no tokenizer: add the tokenizer and preprocessor_config.json.")
    return layout.head.encoder(model, source, checkpoint)


def is_engine(checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint is one of these base models with a projection, or adapters on it."""
    config = checkpoint.config
    if "peft_type" in config:
        return adapter_chain(checkpoint)[-1].model_type in LAYOUTS
    layout = LAYOUTS.get(checkpoint.model_type)
    return layout is not None and layout.architecture in (config.get("architectures") or ())


BACKBONE = Backbone(load_engine, is_engine)
