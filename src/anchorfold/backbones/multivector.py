"""sentence-transformers `MultiVectorEncoder`: as a backbone, and with a compressor attached."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.model_lock import current_thread_only, model_lock
from anchorfold.attention.tap import AttentionTap, find_attention
from anchorfold.backbones import colpali_engine, colqwen_layouts
from anchorfold.backbones.base import BackboneEncoder, PageBatch
from anchorfold.backbones.checkpoint import Checkpoint
from anchorfold.backbones.encoder import label_tokens
from anchorfold.backbones.failures import running_model
from anchorfold.backbones.page_grids import image_token_id, patch_grids
from anchorfold.backbones.weights import check_loaded, require_safetensors
from anchorfold.compressors import Compressor
from anchorfold.errors import CheckpointError, MissingExtraError, UnreadableAttentionError
from anchorfold.page import PageState

_ATTACHED = "_anchorfold_attached"


class MultiVectorBackbone(BackboneEncoder):
    """A `MultiVectorEncoder` as an encoder.

    Visual tokens are the image tokens of a page. For a text-only encoder, all scored tokens are compressed.
    """

    family = "multivector"

    def __init__(
        self, encoder: Any, checkpoint: Checkpoint | None = None, layer_settings: LayerSettings | Path | None = None
    ) -> None:
        self.encoder = encoder
        self._inner = encoder[0].auto_model
        if checkpoint is None:
            # An index stores the name or absolute path from which the encoder was loaded, if it is known.
            name = str(getattr(self._inner, "name_or_path", "") or type(encoder).__name__)
            name = os.path.abspath(name) if os.path.isdir(name) else name
            checkpoint = Checkpoint(name, self._inner.device, self._inner.dtype, layer_settings=layer_settings)
        self._layers = _language_layers(encoder)
        self._dense = [m for m in encoder if type(m).__name__ == "Dense"]
        kind = getattr(self._inner.config, "model_type", "multivector")
        settings = checkpoint.choose_layer_settings(_family(kind), len(self._layers), encoder)
        super().__init__(encoder, settings, checkpoint.name)

    @property
    def attention_layers(self) -> list[nn.Module]:
        """Attention modules, found by running the encoder once."""
        return self._layers

    @property
    def projection(self) -> Any:
        """Projection layer inside the model, if it has one."""
        return getattr(self._inner, "embedding_proj_layer", None)

    @property
    def accepts_images(self) -> bool:
        """Whether documents are page images; they are texts otherwise."""
        return "image" in self.encoder.modalities

    def project_fully(self, hidden: Tensor) -> Tensor:
        """Apply the inner projection, or the encoder's Dense modules."""
        if self.projection is not None:
            return super().project_fully(hidden)
        for dense in self._dense:
            features = dense({dense.module_input_name: hidden.to(dense.linear.weight.dtype)})
            hidden = features[dense.module_output_name].to(hidden.dtype)
        return hidden

    def open_page(self, page: Any) -> Any:
        """Return a page image in RGB, or a text unchanged."""
        return super().open_page(page) if self.accepts_images else page

    def prepare_pages(self, images: Sequence[Any]) -> PageBatch:
        """Return the encoder's own document features."""
        features = self._features(images, "document")
        visual = self.visual_tokens(features)
        grids = patch_grids(self.encoder[0].processor, features) if self.accepts_images else [None] * len(images)
        grids = [g if g and len(g) == int(v.sum()) else None for g, v in zip(grids, visual, strict=True)]
        return PageBatch(features, visual, features.get("attention_mask"), grids)

    def query_vectors(self, texts: list[str]) -> list[Tensor]:
        """Return the result of the encoder's `encode_query`."""
        with model_lock(self.encoder), running_model():
            return list(self.encoder.encode_query(texts, batch_size=len(texts), show_progress_bar=False))

    def query_labels(self, text: str) -> tuple[list[str], list[int | None]]:
        """Return the words of a query, and the word number of each token except padding."""
        with model_lock(self.encoder):
            features = self._features([text], "query")
        ids, mask = features["input_ids"][0], features.get("attention_mask")
        return label_tokens(text, ids if mask is None else ids[mask[0].bool()], self.encoder.tokenizer)

    def forward(self, inputs: dict[str, Any]) -> None:
        """Run the whole encoder as for a document."""
        self.encoder(dict(inputs), task="document")

    def visual_tokens(self, features: dict[str, Any]) -> Tensor:
        """Return the mask `(B, T)` of tokens to compress."""
        masks = (module for module in self.encoder if type(module).__name__ == "MultiVectorMask")
        mask = next(masks, lambda features, task: features)
        scored: Tensor = mask(dict(features), task="document")["attention_mask"].bool()
        if not _has_images(features):
            return scored
        token = image_token_id(self.encoder[0].processor)
        token = getattr(self._inner.config, "image_token_id", None) if token is None else token
        return scored if token is None else (features["input_ids"] == token) & scored

    @contextmanager
    def _projection_input(self) -> Iterator[list[Tensor]]:
        if self.projection is not None:
            with super()._projection_input() as captured:
                yield captured
            return
        captured = []
        if self._dense:
            first, name = self._dense[0], self._dense[0].module_input_name
            hook = current_thread_only(lambda _, args: captured.append(args[0][name]))
            handle = first.register_forward_pre_hook(hook)
        else:
            hook = current_thread_only(lambda _, args, output: captured.append(output["token_embeddings"]))
            handle = self.encoder[0].register_forward_hook(hook)
        with handle:
            yield captured

    def _features(self, items: Sequence[Any], task: str) -> dict[str, Any]:
        features = self.encoder.preprocess(list(items), task=task)
        return {k: v.to(self.device) if isinstance(v, Tensor) else v for k, v in features.items()}

    def _measure_causality(self) -> bool:
        # Text encoders with late interaction are bidirectional by design.
        return self.accepts_images and super()._measure_causality()


def attach(encoder: Any, compressor: Compressor) -> Any:
    """Make `encoder.encode_document(...)` return compressed vectors, in place; queries are not changed.

    Args:
        encoder: sentence-transformers `MultiVectorEncoder`.
        compressor: for example `AnchorFold(ratio=0.1)`.

    Returns:
        The same encoder. `detach(encoder)` restores it.

    Examples:
        >>> before = len(encoder.encode_document(images[:1])[0])
        >>> attached = attach(encoder, anchorfold.AnchorFold(ratio=0.5))
        >>> len(attached.encode_document(images[:1])[0]) < before
        True
        >>> _ = detach(encoder)
    """
    if not hasattr(encoder, "encode_document"):
        raise TypeError(f"attach requires a sentence-transformers MultiVectorEncoder, got {type(encoder).__name__}.")
    if hasattr(encoder, _ATTACHED):
        raise ValueError("a compressor is already attached to this encoder: detach(encoder) first.")
    backbone = MultiVectorBackbone(encoder)
    signals = list(compressor.signals(backbone.layer_settings))
    if not all(signal.suits_causal for signal in signals):
        backbone.warn_if_causal()
    forward = encoder.forward

    @wraps(forward)
    def compressed_forward(features: dict[str, Any], *args: Any, **options: Any) -> dict[str, Any]:
        with model_lock(encoder):
            # A vision encoder renders plain text as a query: only pages are compressed there.
            is_document = not backbone.accepts_images or _has_images(features)
            if options.get("task") == "query" or not is_document:
                outputs: dict[str, Any] = forward(features, *args, **options)
                return outputs
            visual = backbone.visual_tokens(features)
            with (
                AttentionTap(encoder, backbone.attention_layers, signals) as tap,
                backbone._projection_input() as captured,
            ):
                tap.set_visual_tokens(visual, features.get("attention_mask"))
                output = forward(features, *args, **options)
        rows = [
            compressor.compress(PageState(z[v], backbone.project, page), backbone.layer_settings).vectors
            for z, v, page in zip(captured[-1], visual, tap.pages, strict=True)
        ]
        padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        lengths = torch.tensor([len(r) for r in rows], device=padded.device)
        mask = torch.arange(padded.shape[1], device=padded.device) < lengths[:, None]
        return {**output, "token_embeddings": padded, "attention_mask": mask}

    # Replaced on this object instead of hooked, so that capturing also ends if the pass is interrupted.
    setattr(encoder, _ATTACHED, vars(encoder).get("forward"))
    encoder.forward = compressed_forward
    return encoder


def detach(encoder: Any) -> Any:
    """Undo `attach`.

    Examples:
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


def load_encoder(checkpoint: Checkpoint) -> Any:
    """Load a checkpoint as a `MultiVectorEncoder`, for families that this package does not implement."""
    if not checkpoint.allow_pickle:
        require_safetensors(checkpoint.name, checkpoint.revision)
    try:
        from sentence_transformers import MultiVectorEncoder
    except ImportError as error:
        raise MissingExtraError(f"sentence-transformers (for {checkpoint.name})", "multivector", error) from None
    # sentence-transformers adds a random projection to bare models; it recognises trained ones by these.
    architectures = checkpoint.config.get("architectures") or []
    trained = any(name == "HF_ColBERT" or name.endswith("ForRetrieval") for name in architectures)
    if not trained and checkpoint.json("modules.json") is None:
        raise CheckpointError(
            f"{checkpoint.name} is a bare {checkpoint.model_type or 'model'} without a trained projection: "
            "give a checkpoint of a trained retriever; weights are never initialised at random."
        )
    safe = {} if checkpoint.allow_pickle else {"use_safetensors": True}
    encoder = MultiVectorEncoder(
        checkpoint.name, device=str(checkpoint.device), revision=checkpoint.revision,
        trust_remote_code=checkpoint.trust_remote_code, model_kwargs={"dtype": checkpoint.dtype, **safe},
    )  # fmt: skip
    check_loaded(encoder[0].auto_model, checkpoint.name, revision=checkpoint.revision, **safe)
    return encoder


def _family(model_type: str) -> str:
    """Return the family of a base model, whose layer settings apply to it; its type for others."""
    if model_type in colqwen_layouts.LAYOUTS:
        return colqwen_layouts.LAYOUTS[model_type].family
    return colpali_engine.LAYOUTS[model_type].head.family if model_type in colpali_engine.LAYOUTS else model_type


def _has_images(features: dict[str, Any]) -> bool:
    return any(key.startswith("pixel_values") for key in features)


def _language_layers(encoder: Any) -> list[nn.Module]:
    example: Any = Image.new("RGB", (224, 224), "white") if "image" in encoder.modalities else "a short page"
    features = encoder.preprocess([example], task="document")
    device = next(encoder.parameters()).device
    features = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in features.items()}
    run: Callable[[], object] = torch.no_grad()(lambda: encoder(dict(features), task="document"))
    layers = find_attention(encoder, run, features["input_ids"].shape[1])
    if not layers:
        raise UnreadableAttentionError(
            "cannot capture the attention of this encoder: it does not use transformers' AttentionInterface."
        )
    return layers
