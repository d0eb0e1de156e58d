"""A compressor inside a sentence-transformers `MultiVectorEncoder`: its documents come out compressed."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import nn

from anchorfold.attention.model_lock import model_lock
from anchorfold.attention.tap import AttentionTap
from anchorfold.backbones.multivector import MultiVectorRetriever
from anchorfold.compressors import Compressor
from anchorfold.page import PageState

_ATTACHED = "_anchorfold_attached"


def attach(encoder: Any, compressor: Compressor) -> Any:
    """Make `encoder.encode_document(...)` return compressed vectors, in place; queries are never touched.

    Args:
        encoder: a sentence-transformers `MultiVectorEncoder`.
        compressor: for example `AnchorFold(ratio=0.1)`.

    Returns:
        The same encoder. `detach(encoder)` undoes it.

    >>> before = len(encoder.encode_document(images[:1])[0])
    >>> attached = attach(encoder, anchorfold.AnchorFold(ratio=0.5))
    >>> len(attached.encode_document(images[:1])[0]) < before
    True
    >>> _ = detach(encoder)
    """
    if not hasattr(encoder, "encode_document"):
        raise TypeError(f"attach needs a sentence-transformers MultiVectorEncoder, got {type(encoder).__name__}.")
    if hasattr(encoder, _ATTACHED):
        raise ValueError("a compressor is attached to this encoder already: detach(encoder) first.")
    retriever = MultiVectorRetriever(encoder)
    signals = list(compressor.signals(retriever.settings))
    if signals:
        retriever.warn_if_causal()
    forward = encoder.forward

    @wraps(forward)
    def compressed(features: dict[str, Any], *args: Any, **options: Any) -> dict[str, Any]:
        with model_lock(encoder):
            if options.get("task") == "query" or not _is_document(retriever, features):
                outputs: dict[str, Any] = forward(features, *args, **options)
                return outputs
            visual = retriever.visual_tokens(features)
            with (
                AttentionTap(encoder, retriever.attention_layers, signals) as tap,
                retriever._projection_input() as caught,
            ):
                tap.look_at(visual, features.get("attention_mask"))
                output = forward(features, *args, **options)
        rows = [
            compressor.compress(PageState(z[v], retriever.project, page), retriever.settings).vectors
            for z, v, page in zip(caught[-1], visual, tap.pages, strict=True)
        ]
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(r) for r in rows], device=padded.device)
        mask = torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]
        return {**output, "token_embeddings": padded, "attention_mask": mask}

    # Replaced on this object alone, rather than hooked: whatever ends a pass, Ctrl-C too, also ends the listening.
    setattr(encoder, _ATTACHED, vars(encoder).get("forward"))
    encoder.forward = compressed
    return encoder


def detach(encoder: Any) -> Any:
    """Undo `attach`; the encoder is as it was before.

    >>> detach(attach(encoder, anchorfold.AnchorFold(ratio=0.5))) is encoder
    True
    """
    if not hasattr(encoder, _ATTACHED):
        raise ValueError("no compressor is attached to this encoder.")
    before = getattr(encoder, _ATTACHED)
    del encoder.forward
    if before is not None:
        encoder.forward = before
    delattr(encoder, _ATTACHED)
    return encoder


def _is_document(retriever: MultiVectorRetriever, features: dict[str, Any]) -> bool:
    # A vision encoder renders plain text as a query: only pages are compressed there.
    return not retriever.sees_images or any(k.startswith("pixel_values") for k in features)
