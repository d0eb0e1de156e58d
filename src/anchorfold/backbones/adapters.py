"""LoRA adapters on a base model; adapters that do not match exactly are rejected."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anchorfold.backbones.checkpoint import Checkpoint
from anchorfold.backbones.weights import require_safetensors, weight_mismatches
from anchorfold.errors import CheckpointError, MissingExtraError

_LORA = re.compile(r"(.+)\.(?:lora_\w+)(?:\.|$)")
_TOKENS = ".token_adapter.trainable_tokens_delta"  # trained rows of an embedding


def adapter_chain(checkpoint: Checkpoint) -> list[Checkpoint]:
    """Return adapters, the adapters they were trained on, and so on; the base model is last."""
    chain = [checkpoint]
    while "peft_type" in (config := chain[-1].config):
        base = checkpoint.base(config["base_model_name_or_path"], config.get("revision"))
        if base.name in {part.name for part in chain}:
            raise CheckpointError(
                f"the adapters {chain[-1].name} name {base.name} as their base model, which is circular: correct "
                "base_model_name_or_path in its adapter_config.json."
            )
        chain.append(base)
    return chain


def add_adapters(model: nn.Module, checkpoint: Checkpoint, rename: Callable[[str], str] | None = None) -> None:
    """Add a checkpoint's adapters to its base model in place, and merge them if `merge_adapters` is set.

    Args:
        model: the base model.
        checkpoint: the adapters.
        rename: maps saved weight names to the model's; `adapter_key` if None.
    """
    if not checkpoint.allow_pickle:
        require_safetensors(checkpoint.name, checkpoint.revision)
    folder = checkpoint.folder
    if folder is None:
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(checkpoint.name, revision=checkpoint.revision, allow_patterns=["adapter_*"]))
    add_adapter(model, folder, checkpoint.merge_adapters, rename or adapter_key)
    model.to(checkpoint.device).eval()


def add_adapter(model: nn.Module, folder: Path, merge: bool, rename: Callable[[str], str]) -> None:
    """Add LoRA adapters from a folder to the model in place; `merge` merges them into the weights."""
    try:
        from peft import PeftConfig, get_peft_model_state_dict, inject_adapter_in_model, set_peft_model_state_dict
        from peft.tuners.tuners_utils import BaseTunerLayer, check_target_module_exists
    except ImportError as error:
        raise MissingExtraError(f"peft (for the LoRA adapters in {folder})", "lora", error) from None

    saved = {rename(key): weight for key, weight in _read(folder).items()}
    # Modules that were fully trained have plain weights in the same file.
    full = {key: saved.pop(key) for key in saved.keys() & model.state_dict().keys()}
    modules = dict(model.named_modules())
    adapted = {match[1] for key in saved if (match := _LORA.match(key))}
    if not adapted:
        raise CheckpointError(f"{folder} contains no LoRA weights; other adapters are not supported.")
    _refuse(folder, {"unexpected_keys": [key for key in saved if _module(key) not in modules]})
    config: Any = PeftConfig.from_pretrained(str(folder))
    linear = {name for name, module in modules.items() if isinstance(module, nn.Linear)}
    targets = {name for name in linear if check_target_module_exists(config, name)}
    # The weights name the trained modules; patterns may follow the module names of another version.
    config.target_modules = sorted(adapted)
    inject_adapter_in_model(config, model)
    state = model.state_dict()
    expected = get_peft_model_state_dict(model, save_embedding_layers=False)
    where = {key: key if key in state else _inside(key) for key in full}
    shapes = {k: v.shape for k, v in expected.items()} | {key: state[name].shape for key, name in where.items()}
    given = {k: v.shape for k, v in (saved | full).items()}
    _refuse(
        folder,
        {
            "missing_keys": [
                *(expected.keys() - saved.keys()),
                *(f"{name}.lora_A.weight" for name in targets - adapted),
            ],
            "unexpected_keys": saved.keys() - expected.keys(),
            "mismatched_keys": [(k, given[k], shapes[k]) for k in given if k in shapes and given[k] != shapes[k]],
        },
    )
    set_peft_model_state_dict(model, saved)
    model.load_state_dict({where[key]: weight for key, weight in full.items()}, strict=False)
    for module in model.modules():
        if merge and isinstance(module, BaseTunerLayer):
            module.merge(safe_merge=True)


def unload_adapters(model: nn.Module) -> None:
    """Replace layers with merged adapters by plain layers in place, as a base for further adapters."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import TrainableTokensWrapper

    modules = dict(model.named_modules())
    adapted = {name for name, module in modules.items() if isinstance(module, (BaseTunerLayer, TrainableTokensWrapper))}
    for name in adapted:
        parent, _, child = name.rpartition(".")
        if parent in adapted:
            continue  # rows of an embedding, inside its wrapper
        layer: Any = modules[name]
        layer = layer.token_adapter if isinstance(layer, TrainableTokensWrapper) else layer
        setattr(modules[parent], child, layer.get_base_layer())
    if adapted:
        del model.peft_config


def adapter_key(key: str) -> str:
    """Map a weight name saved by any version of the trainers to our model."""
    key = re.sub(r"^base_model\.model\.", "", key)
    key = re.sub(r"^(?:vlm\.)?(?:model\.)?(?=(?:visual|language_model)\.)", "", key)
    key = re.sub(r"^embedding_proj_layer\.", "custom_text_proj.", key)
    return re.sub(r"^(?:vlm\.)?model\.(?=(?:layers|norm|embed_tokens)\b)", "language_model.", key)


def _read(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    safe = folder / "adapter_model.safetensors"
    if safe.is_file():
        weights: dict[str, Tensor] = load_file(safe)
        return weights
    pickled: dict[str, Tensor] = torch.load(folder / "adapter_model.bin", "cpu", weights_only=True)
    return pickled


def _module(key: str) -> str:
    """Return the module of a LoRA weight or of trained rows."""
    match = _LORA.match(key)
    return match[1] if match else key.removesuffix(_TOKENS)


def _inside(key: str) -> str:
    """Return the name of a weight after adapters were added to its module."""
    module, _, last = key.rpartition(".")
    return f"{module}.base_layer.{last}"


def _refuse(folder: Path, report: dict[str, Any]) -> None:
    if problems := weight_mismatches(report):
        raise CheckpointError(
            f"the adapters in {folder} do not fit their base model: {problems}. Load them with the model they were "
            "trained on (base_model_name_or_path in adapter_config.json), or copy them again if some are missing."
        )
