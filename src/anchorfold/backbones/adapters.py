"""LoRA adapters on a base model: all of them fit, or none is loaded."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anchorfold.backbones.checkpoint import Checkpoint
from anchorfold.backbones.pickled import require_safetensors
from anchorfold.backbones.strict import fitting_problems
from anchorfold.errors import CheckpointError, MissingExtraError

_LORA = re.compile(r"(.+)\.(?:lora_\w+)(?:\.|$)")
_TOKENS = ".token_adapter.trainable_tokens_delta"  # rows of an embedding that were trained along


def add_adapters(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Put a checkpoint's adapters into its base model, in place, and fold them into the weights if that is wanted."""
    if not checkpoint.allow_pickle:
        require_safetensors(checkpoint.name, checkpoint.revision)
    folder = checkpoint.folder
    if folder is None:
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(checkpoint.name, revision=checkpoint.revision, allow_patterns=["adapter_*"]))
    add_adapter(model, folder, checkpoint.merge_adapters)
    model.to(checkpoint.device).eval()


def add_adapter(model: nn.Module, folder: Path, merge: bool) -> None:
    """Put LoRA adapters from a folder into the model, in place; `merge` folds them into the weights."""
    try:
        from peft import PeftConfig, get_peft_model_state_dict, inject_adapter_in_model, set_peft_model_state_dict
        from peft.tuners.tuners_utils import BaseTunerLayer, check_target_module_exists
    except ImportError as error:
        raise MissingExtraError(f"peft (for the LoRA adapters in {folder})", "lora", error) from None

    saved = {adapter_key(key): weight for key, weight in _read(folder).items()}
    # Whole weights may lie beside the adapters: of modules that were trained in full.
    whole = {key: saved.pop(key) for key in saved.keys() & model.state_dict().keys()}
    modules = dict(model.named_modules())
    adapted = {match[1] for key in saved if (match := _LORA.match(key))}
    if not adapted:
        raise CheckpointError(f"{folder} holds no LoRA weights, and no other adapters are read.")
    _refuse(folder, {"unexpected_keys": [key for key in saved if _module(key) not in modules]})
    config: Any = PeftConfig.from_pretrained(str(folder))
    linear = {name for name, module in modules.items() if isinstance(module, nn.Linear)}
    meant = {name for name in linear if check_target_module_exists(config, name)}
    # The weights tell what was trained; patterns follow the names that another version gave to modules.
    config.target_modules = sorted(adapted)
    inject_adapter_in_model(config, model)
    state = model.state_dict()
    expected = get_peft_model_state_dict(model, save_embedding_layers=False)
    where = {key: key if key in state else _inside(key) for key in whole}
    shapes = {k: v.shape for k, v in expected.items()} | {key: state[name].shape for key, name in where.items()}
    given = {k: v.shape for k, v in (saved | whole).items()}
    _refuse(
        folder,
        {
            "missing_keys": [*(expected.keys() - saved.keys()), *(f"{name}.lora_A.weight" for name in meant - adapted)],
            "unexpected_keys": saved.keys() - expected.keys(),
            "mismatched_keys": [(k, given[k], shapes[k]) for k in given if k in shapes and given[k] != shapes[k]],
        },
    )
    set_peft_model_state_dict(model, saved)
    model.load_state_dict({where[key]: weight for key, weight in whole.items()}, strict=False)
    for module in model.modules():
        if merge and isinstance(module, BaseTunerLayer):
            module.merge(safe_merge=True)


def unload_adapters(model: nn.Module) -> None:
    """Make ordinary layers of those with merged adapters, in place: what a base of further adapters is."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import TrainableTokensWrapper

    modules = dict(model.named_modules())
    adapted = {name for name, module in modules.items() if isinstance(module, (BaseTunerLayer, TrainableTokensWrapper))}
    for name in adapted:
        parent, _, child = name.rpartition(".")
        if parent in adapted:
            continue  # the rows of an embedding, inside of its wrapper
        layer: Any = modules[name]
        layer = layer.token_adapter if isinstance(layer, TrainableTokensWrapper) else layer
        setattr(modules[parent], child, layer.get_base_layer())
    if adapted:
        del model.peft_config


def plain_linear(module: nn.Module) -> nn.Module:
    """A linear layer as one matrix: with its LoRA adapters folded in, in float32, if they are kept apart."""
    if not hasattr(module, "get_base_layer"):
        return module
    if not module.merged:
        module = copy.deepcopy(module).float()
        module.merge()  # type: ignore[operator]
    base: nn.Module = module.get_base_layer()  # type: ignore[operator]
    return base


def adapter_key(key: str) -> str:
    """A module path in our model, from one saved by any version of the trainers."""
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
    """The module that a LoRA weight or trained rows belong to."""
    match = _LORA.match(key)
    return match[1] if match else key.removesuffix(_TOKENS)


def _inside(key: str) -> str:
    """Where a weight is once its module carries adapters."""
    module, _, last = key.rpartition(".")
    return f"{module}.base_layer.{last}"


def _refuse(folder: Path, report: dict[str, Any]) -> None:
    problems = fitting_problems(report)
    if problems:
        raise CheckpointError(
            f"the adapters in {folder} do not fit their base model: {problems}. Load them with the model that they "
            "were trained on (base_model_name_or_path in adapter_config.json), and copy them again if some are gone."
        )
