"""Any sentence-transformers `MultiVectorEncoder`, as a retriever."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.model_lock import model_lock, own_thread
from anchorfold.attention.tap import UnreadableAttentionError, find_attention
from anchorfold.backbones.base import PageBatch, Retriever
from anchorfold.backbones.checkpoint import Checkpoint
from anchorfold.backbones.failures import running_model
from anchorfold.backbones.pickled import require_safetensors
from anchorfold.backbones.query_words import label_tokens
from anchorfold.backbones.strict import check_loaded
from anchorfold.errors import CheckpointError, MissingExtraError
from anchorfold.page import PageState, PatchGrid

_FAMILIES = {
    "colpali": "colpali",
    "colqwen2": "colqwen2",
    "colmodernvbert": "colmodernvbert",
    "qwen2_vl": "colqwen2",
    "qwen2_5_vl": "colqwen2.5",
    "qwen3_vl": "colqwen3",
}


class MultiVectorRetriever(Retriever):
    """A `MultiVectorEncoder` behind our interface.

    Visual tokens are the image tokens of a page. A text-only encoder has none: there, all tokens that it
    scores are compressed.
    """

    family = "multivector"

    def __init__(
        self, encoder: Any, checkpoint: Checkpoint | None = None, settings: LayerSettings | Path | None = None
    ) -> None:
        self.encoder = encoder
        inner = _inner(encoder)
        if checkpoint is None:
            # What it was loaded from, as far as it knows, is what an index can find it again by.
            name = str(getattr(inner, "name_or_path", "") or type(encoder).__name__)
            name = os.path.abspath(name) if os.path.isdir(name) else name
            checkpoint = Checkpoint(name, inner.device, inner.dtype, settings=settings)
        self._layers = _language_layers(encoder)
        kind = getattr(inner.config, "model_type", "multivector")
        chosen = checkpoint.layer_settings(_FAMILIES.get(kind, kind), len(self._layers), encoder)
        super().__init__(encoder, chosen, checkpoint.name)

    @property
    def attention_layers(self) -> list[nn.Module]:
        """Found by watching the encoder run once."""
        return self._layers

    @property
    def projection(self) -> Any:
        """The model's own projection layer, if it has one inside."""
        return getattr(_inner(self.encoder), "embedding_proj_layer", None)

    def project(self, hidden: Tensor) -> Tensor:
        """The inner projection, or the encoder's Dense modules in turn."""
        if self.projection is not None:
            return super().project(hidden)
        for dense in _dense_modules(self.encoder):
            features = dense({dense.module_input_name: hidden.to(dense.linear.weight.dtype)})
            hidden = features[dense.module_output_name].to(hidden.dtype)
        return hidden

    def prepare_pages(self, images: Sequence[Any]) -> PageBatch:
        """The encoder's own document features."""
        features = self._features(images, "document")
        visual = self.visual_tokens(features)
        return PageBatch(
            features, visual, features.get("attention_mask"), [self._grid(features, b) for b in range(len(images))]
        )

    def query_vectors(self, texts: list[str]) -> list[Tensor]:
        """Exactly what the encoder's `encode_query` returns."""
        with model_lock(self.encoder), running_model():
            return list(self.encoder.encode_query(texts, batch_size=len(texts), show_progress_bar=False))

    def query_labels(self, text: str) -> tuple[list[str], list[int | None]]:
        """Of the encoder's own query tokens, padding left out."""
        with model_lock(self.encoder):
            features = self._features([text], "query")
        ids, mask = features["input_ids"][0], features.get("attention_mask")
        return label_tokens(text, ids if mask is None else ids[mask[0].bool()], self.encoder.tokenizer)

    def page_states(self, images: Any, signals: Any = (), batch_size: int | None = None) -> Iterator[PageState]:
        """As the base class, but documents may be texts for a text-only encoder."""
        if self.sees_images:
            yield from super().page_states(images, signals, batch_size)
            return
        signals, items = list(signals), list(images)
        if signals:
            self.warn_if_causal()
        size = batch_size or self.default_batch
        for start in range(0, len(items), size):
            yield from self._batch_states(items[start : start + size], signals)

    @property
    def sees_images(self) -> bool:
        """Whether the encoder takes page images."""
        return "image" in self.encoder.modalities

    def forward(self, inputs: dict[str, Any]) -> None:
        """Run the whole encoder as for a document."""
        self.encoder(dict(inputs), task="document")

    def visual_tokens(self, features: dict[str, Any]) -> Tensor:
        """`(B, T)` tokens to compress."""
        scored = _scoring_mask(self.encoder, features, "document")
        token = _image_token(self.encoder)
        if token is not None and any(k.startswith("pixel_values") for k in features):
            images: Tensor = features["input_ids"] == token
            return images & scored
        return scored

    @contextmanager
    def _projection_input(self) -> Iterator[list[Tensor]]:
        dense = _dense_modules(self.encoder)
        if self.projection is not None:
            with super()._projection_input() as inner:
                yield inner
            return
        caught: list[Tensor] = []
        if dense:
            name = dense[0].module_input_name
            handle = dense[0].register_forward_pre_hook(own_thread(lambda _, args: caught.append(args[0][name])))
        else:
            last = own_thread(lambda _, args, output: caught.append(output["token_embeddings"]))
            handle = self.encoder[0].register_forward_hook(last)
        try:
            yield caught
        finally:
            handle.remove()

    def _features(self, items: Sequence[Any], task: str) -> dict[str, Any]:
        features = self.encoder.preprocess(list(items), task=task)
        return {k: v.to(self.device) if isinstance(v, Tensor) else v for k, v in features.items()}

    def _grid(self, features: dict[str, Any], page: int) -> PatchGrid | None:
        processor = self.encoder[0].processor
        if "image_grid_thw" in features:
            _, h, w = features["image_grid_thw"][page].tolist()
            merge = processor.image_processor.merge_size
            return PatchGrid.single(h // merge, w // merge)
        side = getattr(processor, "image_seq_length", 0) ** 0.5
        return PatchGrid.single(int(side), int(side)) if side and side.is_integer() else None

    def _find_causal(self) -> bool:
        if self.sees_images:
            return super()._find_causal()
        return False  # text encoders with late interaction are bidirectional by design


def load_encoder(checkpoint: Checkpoint) -> Any:
    """A checkpoint as a `MultiVectorEncoder`: whatever sentence-transformers knows and we do not."""
    if not checkpoint.allow_pickle:
        require_safetensors(checkpoint.name, checkpoint.revision)
    try:
        from sentence_transformers import MultiVectorEncoder
    except ImportError as error:
        raise MissingExtraError(f"sentence-transformers (for {checkpoint.name})", "multivector", error) from None
    _require_projection(checkpoint)
    safe = {} if checkpoint.allow_pickle else {"use_safetensors": True}
    encoder = MultiVectorEncoder(
        checkpoint.name, device=str(checkpoint.device), revision=checkpoint.revision,
        trust_remote_code=checkpoint.trust_remote_code, model_kwargs={"dtype": checkpoint.dtype, **safe},
    )  # fmt: skip
    check_loaded(_inner(encoder), checkpoint.name, revision=checkpoint.revision, **safe)
    return encoder


def _require_projection(checkpoint: Checkpoint) -> None:
    """sentence-transformers gives a bare model a random projection; it knows trained ones by these."""
    architectures = checkpoint.config.get("architectures") or []
    trained = any(name == "HF_ColBERT" or name.endswith("ForRetrieval") for name in architectures)
    if not trained and checkpoint.json("modules.json") is None:
        raise CheckpointError(
            f"{checkpoint.name} is a bare {checkpoint.model_type or 'model'} without a trained projection: "
            "give a checkpoint of a trained retriever; weights are never filled in at random."
        )


def _inner(encoder: Any) -> Any:
    return encoder[0].auto_model


def _dense_modules(encoder: Any) -> list[Any]:
    return [m for m in encoder if type(m).__name__ == "Dense"]


def _image_token(encoder: Any) -> int | None:
    processor = encoder[0].processor
    token = getattr(processor, "image_token_id", None)
    return token if token is not None else getattr(_inner(encoder).config, "image_token_id", None)


def _scoring_mask(encoder: Any, features: dict[str, Any], task: str) -> Tensor:
    """Which tokens the encoder would score: its own mask module's answer."""
    for module in encoder:
        if type(module).__name__ == "MultiVectorMask":
            features = module(dict(features), task=task)
            break
    mask: Tensor = features["attention_mask"]
    return mask.bool()


def _language_layers(encoder: Any) -> list[nn.Module]:
    example: Any = Image.new("RGB", (224, 224), "white") if "image" in encoder.modalities else "a short page"
    features = encoder.preprocess([example], task="document")
    device = next(encoder.parameters()).device
    features = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in features.items()}
    run: Callable[[], object] = torch.no_grad()(lambda: encoder(dict(features), task="document"))
    layers = find_attention(encoder, run, features["input_ids"].shape[1])
    if not layers:
        raise UnreadableAttentionError(
            "this encoder's attention cannot be read: it does not use transformers' AttentionInterface."
        )
    return layers
