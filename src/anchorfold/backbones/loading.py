"""`anchorfold.load`: create an encoder from a model name, a folder, or a sentence-transformers model."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.base import BackboneEncoder
from anchorfold.backbones.catalogue import trained_dimensions
from anchorfold.backbones.checkpoint import BACKBONES, Checkpoint
from anchorfold.backbones.encoder import STORED_OPTIONS, Encoder
from anchorfold.backbones.multivector import MultiVectorBackbone, load_encoder
from anchorfold.errors import AnchorFoldError, UntrainedDimensionsWarning


def load(
    model: Any,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    trust_remote_code: bool = False,
    bidirectional: bool | None = None,
    merge_adapters: bool = True,
    revision: str | None = None,
    dim: int | None = None,
    allow_pickle: bool = False,
    layer_settings: LayerSettings | str | Path | None = None,
) -> BackboneEncoder:
    """Load an encoder from a hub name, a local folder, or a sentence-transformers `MultiVectorEncoder`.

    Args:
        model: "nano" (included in this package), "vidore/colpali-v1.3-hf", "./my-checkpoint", or an encoder object.
        device: "cuda", "mps", "cpu"; the best available device if None.
        dtype: bfloat16 on CUDA and float32 elsewhere if None.
        trust_remote_code: allow a sentence-transformers checkpoint to run its own Python code.
        bidirectional: True removes the causal mask of a ColQwen model, as in the paper; None follows the checkpoint.
        merge_adapters: merge LoRA adapters into the weights.
        revision: revision of a hub model.
        dim: use the first `dim` components of the vectors, for models trained for it (Matryoshka).
        allow_pickle: also load weights from pickle files (`pytorch_model.bin`), which can execute code.
        layer_settings: layers to read, or a calibration file; if None, the model's own calibration, which is stored
            next to local weights or adapters, and in the user's cache for other models.

    Examples:
        >>> model = load("nano")
        >>> [len(page) for page in model.encode_documents(images, anchorfold.AnchorFold(cap=20))]
        [20, 20, 20]
    """
    device = choose_device(device)
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    layer_settings = Path(layer_settings) if isinstance(layer_settings, str) else layer_settings
    if not isinstance(model, (str, Path)):
        backbone = MultiVectorBackbone(model, layer_settings=layer_settings)
        if dim is not None:
            backbone.truncate(dim)
        return backbone
    # An index stores the absolute path of a folder; a folder with the name of a built-in model is written ./nano.
    name = os.path.abspath(model) if os.path.isdir(model) and not _is_builtin(model) else str(model)
    checkpoint = Checkpoint(
        name, device, dtype, revision, trust_remote_code, bidirectional, merge_adapters, dim, allow_pickle,
        layer_settings,
    )  # fmt: skip
    with quiet_hub():
        encoder: Any = _load(checkpoint)  # backbones of other packages may return any Encoder
    if isinstance(encoder, BackboneEncoder):
        defaults = Checkpoint(name, device, dtype)
        options = {option: getattr(checkpoint, option) for option in STORED_OPTIONS}
        encoder.load_options = {k: v for k, v in options.items() if v != getattr(defaults, k)}
    if dim is not None:
        _truncate(encoder, checkpoint, dim)
    return cast(BackboneEncoder, encoder)


def _truncate(encoder: Any, checkpoint: Checkpoint, dim: int) -> None:
    if not isinstance(encoder, BackboneEncoder):
        raise AnchorFoldError(f"the vectors of {checkpoint.name} cannot be truncated: leave out dim.")
    encoder.truncate(dim)
    if dim not in (trained := trained_dimensions(checkpoint.name, checkpoint.config)):
        known = f" It was trained for {', '.join(map(str, trained))}." if trained else ""
        warnings.warn(
            f"{checkpoint.name} is not known to have been trained for vectors of {dim} dimensions: compare the results "
            f"with those of all dimensions.{known}",
            UntrainedDimensionsWarning,
            stacklevel=3,
        )


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Suppress the hub client's warnings about retries: the final error reports the cause."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def choose_device(name: str | torch.device | None = None) -> torch.device:
    """Return the named device, or the best available one; raise AnchorFoldError if it cannot be used."""
    *others, last = devices = available_devices()
    if not name:
        return torch.device(devices[0])
    choice = f"choose {', '.join(others)} or {last}." if others else f"choose {last}."
    try:
        device = torch.device(name)
    except RuntimeError:
        raise AnchorFoldError(f"unknown device {str(name)!r}: {choice}") from None
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise AnchorFoldError(f"the device {str(name)!r} is not available here: {choice}") from None
    if device.type == "meta":
        raise AnchorFoldError(f"the device 'meta' cannot compute anything: {choice}")
    return device


def available_devices() -> list[str]:
    """Return the available devices: CUDA, then Apple's MPS, then the CPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    cuda = ["cuda", *(f"cuda:{i}" for i in range(1, count))] if count else []
    return [*cuda, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def _is_builtin(model: str | Path) -> bool:
    """Return whether this is the name of a model that needs no checkpoint."""
    if not isinstance(model, str) or model not in BACKBONES:
        return False
    return BACKBONES[model].has_name or BACKBONES[model].claims is None


def _load(checkpoint: Checkpoint) -> Encoder:
    if _is_builtin(checkpoint.name):
        return BACKBONES[checkpoint.name].load(checkpoint)
    for backbone in map(BACKBONES.__getitem__, BACKBONES.names()):
        if backbone.claims is not None and backbone.claims(checkpoint):
            return backbone.load(checkpoint)
    return MultiVectorBackbone(load_encoder(checkpoint), checkpoint)
