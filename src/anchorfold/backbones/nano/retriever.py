"""The embedded backbone as a retriever."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from anchorfold.attention.layer_settings import CALIBRATION_FILE, LayerSettings
from anchorfold.backbones.base import PageBatch, Retriever
from anchorfold.backbones.checkpoint import Backbone, Checkpoint
from anchorfold.backbones.nano.config import NanoConfig
from anchorfold.backbones.nano.model import NanoModel
from anchorfold.backbones.nano.processor import NanoImageProcessor
from anchorfold.backbones.nano.query import WordIndex, encode_query, query_words
from anchorfold.backbones.nano.query_side import FAMILY, WEIGHTS
from anchorfold.backbones.strict import load_strictly
from anchorfold.page import PatchGrid


class Nano(Retriever):
    """Reads page pixels; a query is the vectors of its words, longer the rarer they are."""

    family = FAMILY
    page_pixels = 900_000  # 1,600 patches of 16 x 32, and a little to shrink from

    def __init__(
        self, model: NanoModel, processor: NanoImageProcessor, words: WordIndex, settings: LayerSettings, name: str
    ) -> None:
        super().__init__(model, settings, name)
        self.processor, self.words = processor, words

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> Nano:
        """The embedded weights by their name, or a folder."""
        folder = checkpoint.folder if checkpoint.folder and checkpoint.name != cls.family else WEIGHTS
        model = load_strictly(NanoModel, str(folder), dtype=checkpoint.dtype).to(checkpoint.device)
        settings = checkpoint.layer_settings(cls.family, len(model.layers), model, folder / CALIBRATION_FILE)
        return cls(model, NanoImageProcessor.from_pretrained(folder), WordIndex.load(folder), settings, checkpoint.name)

    @cached_property
    def attention_layers(self) -> list[nn.Module]:
        """All of its layers' attention."""
        return [layer.self_attn for layer in self.model.layers]

    @property
    def projection(self) -> Any:
        """The affine map to 128 dimensions, or what comes after it."""
        return self.model.final

    def prepare_pages(self, images: Sequence[Image.Image]) -> PageBatch:
        """Pixels and grids; registers come before the patches and are no visual tokens."""
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
        """One vector a word."""
        words = query_words(text)
        return words, list(range(len(words)))

    def query_vectors(self, texts: list[str]) -> list[Tensor]:
        """One vector a distinct word, in order, scaled by the word's rarity (0 to 1): looked up, not encoded."""
        tables = self.model.words.weight, self.model.spelling.weight, self.model.word_weights
        return [encode_query(text, self.words, *tables) for text in texts]


BACKBONE = Backbone(
    Nano.from_checkpoint,
    lambda checkpoint: checkpoint.folder is not None and checkpoint.model_type == NanoConfig.model_type,
    has_name=True,
)
