"""The late-interaction models of transformers itself: ColPali, ColQwen2 and ColModernVBert.

All three end in `embedding_proj_layer` and come with a processor that writes their prompts; they differ in
where their language layers are and how their patches lie on the page.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import transformers
from PIL import Image
from torch import Tensor, nn

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.base import PageBatch, PromptedRetriever, submodule
from anchorfold.backbones.checkpoint import Backbone, Checkpoint
from anchorfold.page import PatchGrid


class RetrievalHead(PromptedRetriever):
    """A transformers `*ForRetrieval` model and its processor."""

    layers_path: ClassVar[str]
    attention_name: ClassVar[str] = "self_attn"

    def __init__(self, model: nn.Module, processor: Any, settings: LayerSettings, name: str) -> None:
        super().__init__(model, settings, name)
        self.processor = processor
        self.tokenizer = processor.tokenizer

    @property
    def attention_layers(self) -> list[nn.Module]:
        """The language model's attention modules."""
        return [getattr(layer, self.attention_name) for layer in submodule(self.model, self.layers_path)]

    @property
    def projection(self) -> Any:
        """`embedding_proj_layer`."""
        return submodule(self.model, "embedding_proj_layer")

    @abstractmethod
    def grids(self, images: Sequence[Image.Image], inputs: dict[str, Any]) -> list[PatchGrid | None]:
        """Where each page's visual tokens lie."""

    def prepare_pages(self, images: Sequence[Image.Image]) -> PageBatch:
        """The processor's own page inputs."""
        inputs = self._to_device(self.processor.process_images(images=list(images), return_tensors="pt"))
        inputs.pop("labels", None)
        mask = inputs["attention_mask"]
        visual = (inputs["input_ids"] == self.processor.image_token_id) & mask.bool()
        return PageBatch(inputs, visual, mask, self.grids(images, inputs))

    def prepare_queries(self, texts: Sequence[str]) -> tuple[dict[str, Any], Tensor]:
        """The processor's own query inputs; every token that is no padding scores."""
        inputs = self._to_device(self.processor.process_queries(text=list(texts), return_tensors="pt"))
        return inputs, inputs["attention_mask"]

    def _to_device(self, inputs: Any) -> dict[str, Any]:
        return {k: v.to(self.device) if isinstance(v, Tensor) else v for k, v in inputs.items()}


class ColPali(RetrievalHead):
    """ColPali: 1,024 tokens on a 32 x 32 grid. Its processor always returns the `token_type_ids` that keep
    the prefix bidirectional; without them the mask would depend on kernel and padding."""

    family = "colpali"
    layers_path = "vlm.language_model.layers"

    def grids(self, images: Sequence[Image.Image], inputs: dict[str, Any]) -> list[PatchGrid | None]:
        """A square grid."""
        side = round(self.processor.image_seq_length**0.5)
        return [PatchGrid.single(side, side) for _ in images]

    def prepare_pages(self, images: Sequence[Image.Image]) -> PageBatch:
        """All tokens of a page belong to the bidirectional prefix."""
        batch = super().prepare_pages(images)
        batch.inputs["token_type_ids"] = torch.zeros_like(batch.inputs["input_ids"])
        return batch

    def prepare_queries(self, texts: Sequence[str]) -> tuple[dict[str, Any], Tensor]:
        """All tokens of a query belong to the bidirectional prefix."""
        inputs, scores = super().prepare_queries(texts)
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        return inputs, scores


class ColQwen2(RetrievalHead):
    """ColQwen2: dynamic grids."""

    family = "colqwen2"
    layers_path = "vlm.language_model.layers"

    def grids(self, images: Sequence[Image.Image], inputs: dict[str, Any]) -> list[PatchGrid | None]:
        """The image grid after patch merging."""
        return merged_grids(inputs["image_grid_thw"], self.processor.image_processor.merge_size)


class ColModernVBert(RetrievalHead):
    """ColModernVBert: tiles in reading order and the whole page last, 64 tokens each."""

    family = "colmodernvbert"
    layers_path = "vlm.text_model.layers"
    attention_name = "attn"

    def grids(self, images: Sequence[Image.Image], inputs: dict[str, Any]) -> list[PatchGrid | None]:
        """From the `<row_i_col_j>` marks in each page's prompt."""
        side = round(self.processor.image_seq_len**0.5)
        tokens = self.processor.tokenizer.convert_ids_to_tokens
        grids: list[PatchGrid | None] = []
        for ids in inputs["input_ids"].tolist():
            marks = [t.strip("<>").split("_") for t in set(tokens(ids)) if t.startswith("<row_")]
            if not marks:
                grids.append(PatchGrid.single(side, side))
                continue
            down, across = max(int(m[1]) for m in marks), max(int(m[3]) for m in marks)
            grids.append(PatchGrid.tiled(across, down, side, side, thumbnail=True))
        return grids


def merged_grids(image_grid_thw: Tensor, merge: int) -> list[PatchGrid | None]:
    """Qwen's `(B, 3)` time, height, width of patches to grids of tokens."""
    return [PatchGrid.single(h // merge, w // merge) for _, h, w in image_grid_thw.tolist()]


def _backbone(kind: type[RetrievalHead], model_class: str, processor_class: str) -> Backbone:
    def load(checkpoint: Checkpoint) -> RetrievalHead:
        model = checkpoint.pretrained(getattr(transformers, model_class))
        # Pages are resized by Pillow everywhere: torchvision is not needed, and results do not depend on it.
        processor = getattr(transformers, processor_class).from_pretrained(
            checkpoint.name, revision=checkpoint.revision, backend="pil"
        )
        settings = checkpoint.layer_settings(kind.family, len(submodule(model, kind.layers_path)), model)
        return kind(model, processor, settings, checkpoint.name)

    return Backbone(load, lambda checkpoint: checkpoint.model_type == kind.family)


COLPALI = _backbone(ColPali, "ColPaliForRetrieval", "ColPaliProcessor")
COLQWEN2 = _backbone(ColQwen2, "ColQwen2ForRetrieval", "ColQwen2Processor")
COLMODERNVBERT = _backbone(ColModernVBert, "ColModernVBertForRetrieval", "ColModernVBertProcessor")
