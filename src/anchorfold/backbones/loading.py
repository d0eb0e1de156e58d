"""`anchorfold.load`: from a name or folder to a retriever, with one clear sentence for everything that can go wrong."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.base import Retriever
from anchorfold.backbones.checkpoint import BACKBONES, Checkpoint
from anchorfold.backbones.device import choose_device
from anchorfold.backbones.encoder import PageEncoder
from anchorfold.backbones.load_options import STORED_OPTIONS
from anchorfold.backbones.multivector import MultiVectorRetriever, load_encoder


def load(
    model: Any,
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    trust_remote_code: bool = False,
    bidirectional: bool | None = None,
    merge_adapters: bool = True,
    revision: str | None = None,
    allow_pickle: bool = False,
    settings: LayerSettings | str | Path | None = None,
) -> Retriever:
    """A retriever from a model hub name, a local folder, or a sentence-transformers `MultiVectorEncoder`.

    Args:
        model: "nano" (it ships with this package), "vidore/colpali-v1.3-hf", "./my-checkpoint", or an encoder object.
        device: "cuda", "mps", "cpu"; the best one there is if None.
        dtype: bfloat16 on CUDA and float32 elsewhere if None.
        trust_remote_code: allow a sentence-transformers checkpoint to run its own Python code.
        bidirectional: True removes a ColQwen's causal mask, as the paper does; None keeps what the checkpoint says.
        merge_adapters: fold LoRA adapters into the weights (False keeps them apart).
        revision: of a hub model.
        allow_pickle: open weights in pickle files (`pytorch_model.bin`) too, which may run code.
        settings: layers to listen to, or a file of `anchorfold calibrate`; if None, the model's own calibration, which
            lies beside a folder's weights or adapters and for other models in the user's cache.

    >>> model = load("nano")
    >>> [len(page) for page in model.encode_pages(images, anchorfold.AnchorFold(cap=20))]
    [20, 20, 20]
    """
    device = choose_device(device)
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    settings = Path(settings) if isinstance(settings, str) else settings
    if not isinstance(model, (str, Path)):
        return MultiVectorRetriever(model, settings=settings)
    # An index must find a folder again from anywhere; one that is called like a model of ours is ./nano.
    name = os.path.abspath(model) if os.path.isdir(model) and not _has_name(model) else str(model)
    checkpoint = Checkpoint(
        name, device, dtype, revision, trust_remote_code, bidirectional, merge_adapters, allow_pickle, settings
    )
    with quiet_hub():
        encoder: Any = _load(checkpoint)  # another package's may be less than a retriever, and still be indexed with
    if isinstance(encoder, Retriever):
        defaults = Checkpoint(name, device, dtype)
        encoder.load_options = {
            option: value
            for option in STORED_OPTIONS
            if (value := getattr(checkpoint, option)) != getattr(defaults, option)
        }
    return cast(Retriever, encoder)


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Suppress the warnings that the hub's client logs for each retry: the error that follows says it once."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _has_name(model: str | Path) -> bool:
    """Whether this is the name of a model that needs no checkpoint."""
    if not isinstance(model, str) or model not in BACKBONES:
        return False
    return BACKBONES[model].has_name or BACKBONES[model].claims is None


def _load(checkpoint: Checkpoint) -> PageEncoder:
    if _has_name(checkpoint.name):
        return BACKBONES[checkpoint.name].load(checkpoint)
    for name in BACKBONES.names():
        backbone = BACKBONES[name]
        if backbone.claims is not None and backbone.claims(checkpoint):
            return backbone.load(checkpoint)
    return MultiVectorRetriever(load_encoder(checkpoint), checkpoint)
