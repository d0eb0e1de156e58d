"""Retrieval interface of nano."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from anchorfold.attention.layer_settings import CALIBRATION_FILE, LayerSettings
from anchorfold.backbones.base import BackboneEncoder, PageBatch
from anchorfold.backbones.checkpoint import Backbone, Checkpoint
from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.model import NanoModel
from anchorfold.backbones.nano.processor import NanoImageProcessor
from anchorfold.backbones.nano.query import FAMILY, WEIGHTS, Vocabulary, encode_query, extract_words
from anchorfold.backbones.weights import load_strictly
from anchorfold.page import PatchGrid


class Nano(BackboneEncoder):
    """Encodes page pixels; a query has one vector per word, scaled by its inverse document frequency."""

    family = FAMILY
    truncatable = False  # null dimensions carry the weights of vectors
    page_pixels = 900_000  # slightly more than 1,600 patches of 16 x 32, to resize from

    def __init__(
        self,
        model: NanoModel,
        processor: NanoImageProcessor,
        vocabulary: Vocabulary,
        settings: LayerSettings,
        name: str,
    ) -> None:
        super().__init__(model, settings, name)
        self.processor, self.vocabulary = processor, vocabulary

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Nano:
        """Load the embedded weights by name, or those of a folder."""
        folder = checkpoint.folder if checkpoint.folder and checkpoint.name != cls.family else WEIGHTS
        model = load_strictly(NanoModel, str(folder), dtype=checkpoint.dtype).to(checkpoint.device)
        settings = checkpoint.choose_layer_settings(cls.family, len(model.layers), model, folder / CALIBRATION_FILE)
        processor = NanoImageProcessor.from_pretrained(folder)
        return cls(model, processor, Vocabulary.load(folder), settings, checkpoint.name)

    @cached_property
    def attention_layers(self) -> list[nn.Module]:
        """Attention modules of all layers."""
        return [layer.self_attn for layer in self.model.layers]

    @property
    def projection(self) -> Any:
        """Affine map to 128 dimensions, or the identity if vectors are weighted after it."""
        return self.model.output_projection

    def _find_causal(self) -> bool:
        # Outputs cannot be compared: term-frequency weights depend on the whole page even if attention is causal.
        return bool(self.model.config.is_causal)

    def prepare_pages(self, images: Sequence[Image.Image]) -> PageBatch:
        """Prepare pixels and grids; the register tokens before the patches are not visual tokens."""
        inputs = self.processor.preprocess(images)
        registers, counts = self.model.config.registers, inputs["patch_grid"].prod(1)
        token = torch.arange(registers + int(counts.max()))
        valid = token < registers + counts[:, None]
        visual = valid & (token >= registers)
        grids: list[PatchGrid | None] = [PatchGrid.single(r, c) for r, c in inputs["patch_grid"].tolist()]
        moved = {k: v.to(self.device) for k, v in inputs.items()}
        moved["pixel_values"] = moved["pixel_values"].to(self.model.dtype)
        return PageBatch(moved, visual.to(self.device), valid.to(self.device), grids)

    def query_labels(self, text: str) -> tuple[list[str], list[int | None]]:
        """Label each vector with its word."""
        words = extract_words(text)
        return words, list(range(len(words)))

    def query_vectors(self, texts: list[str]) -> list[Tensor]:
        """Look up one vector per distinct word, see `encode_query`."""
        tables = self.model.words.weight, self.model.spelling.weight, self.model.word_weights
        return [encode_query(text, self.vocabulary, *tables) for text in texts]


BACKBONE = Backbone(
    Nano.from_checkpoint,
    lambda checkpoint: checkpoint.folder is not None and checkpoint.model_type == NanoConfig.model_type,
    has_name=True,
)
