"""Late-interaction models of transformers: ColPali, ColQwen2 and ColModernVBert.

They share `embedding_proj_layer` and a processor that writes the prompts; they differ in the location of the language
layers and in the arrangement of patches on the page.
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
from anchorfold.backbones.base import PageBatch, PromptedEncoder
from anchorfold.backbones.checkpoint import Backbone, Checkpoint
from anchorfold.page import PatchGrid


class RetrievalHead(PromptedEncoder):
    """A transformers `*ForRetrieval` model and its processor."""

    layers_path: ClassVar[str] = "vlm.language_model.layers"
    attention_name: ClassVar[str] = "self_attn"

    def __init__(self, model: nn.Module, processor: Any, layer_settings: LayerSettings, name: str) -> None:
        super().__init__(model, layer_settings, name)
        self.processor = processor
        self.tokenizer = processor.tokenizer

    @classmethod
    def load_processor(cls, processor_class: Any, checkpoint: Checkpoint) -> Any:
        """Resize pages with Pillow everywhere: torchvision is not required, and results do not depend on it."""
        return processor_class.from_pretrained(checkpoint.name, revision=checkpoint.revision, backend="pil")

    @property
    def attention_layers(self) -> list[nn.Module]:
        """Attention modules of the language model."""
        return [getattr(layer, self.attention_name) for layer in self.model.get_submodule(self.layers_path)]

    @property
    def projection(self) -> Any:
        """`embedding_proj_layer`."""
        return self.model.embedding_proj_layer

    @abstractmethod
    def grids(self, images: Sequence[Image.Image], inputs: dict[str, Any]) -> list[PatchGrid | None]:
        """Return the patch grid of each page."""

    def prepare_pages(self, images: Sequence[Image.Image]) -> PageBatch:
        """Return the processor's page inputs."""
        inputs = self._to_device(self.processor.process_images(images=list(images), return_tensors="pt"))
        inputs.pop("labels", None)
        mask = inputs["attention_mask"]
        # Not `image_token_id`, which ColQwen2's processor has only since transformers 5.15.
        image_token = self.tokenizer.convert_tokens_to_ids(self.processor.image_token)
        visual = (inputs["input_ids"] == image_token) & mask.bool()
        return PageBatch(inputs, visual, mask, self.grids(images, inputs))

    def prepare_queries(self, texts: Sequence[str]) -> tuple[dict[str, Any], Tensor]:
        """Return the processor's query inputs; all tokens except padding are scored."""
        inputs = self._to_device(self.processor.process_queries(text=list(texts), return_tensors="pt"))
        return inputs, inputs["attention_mask"]

    def _to_device(self, inputs: Any) -> dict[str, Any]:
        return {k: v.to(self.device) if isinstance(v, Tensor) else v for k, v in inputs.items()}


class ColPali(RetrievalHead):
    """ColPali: 1,024 tokens on a 32 x 32 grid.

    `token_type_ids` of zeros keep the whole sequence in the bidirectional prefix; without them the mask would depend on
    kernel and padding.
    """

    family = "colpali"

    def grids(self, images: Sequence[Image.Image], inputs: dict[str, Any]) -> list[PatchGrid | None]:
        """Return square grids."""
        side = round(self.processor.image_seq_length**0.5)
        return [PatchGrid.single(side, side) for _ in images]

    def _to_device(self, inputs: Any) -> dict[str, Any]:
        inputs = super()._to_device(inputs)
        return {**inputs, "token_type_ids": torch.zeros_like(inputs["input_ids"])}


class ColQwen2(RetrievalHead):
    """ColQwen2: dynamic grids."""

    family = "colqwen2"

    def grids(self, images: Sequence[Image.Image], inputs: dict[str, Any]) -> list[PatchGrid | None]:
        """Return the image grids after patch merging."""
        return merged_grids(inputs["image_grid_thw"], self.processor.image_processor.merge_size)


class ColModernVBert(RetrievalHead):
    """ColModernVBert: tiles in reading order and the whole page last, 64 tokens each."""

    family = "colmodernvbert"
    layers_path = "vlm.text_model.layers"
    attention_name = "attn"

    @classmethod
    def load_processor(cls, processor_class: Any, checkpoint: Checkpoint) -> Any:
        """Name the image processor, which transformers before 5.18 finds only with torchvision."""
        from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

        where = {"pretrained_model_name_or_path": checkpoint.name, "revision": checkpoint.revision}
        parts = [kind.from_pretrained(**where) for kind in (Idefics3ImageProcessorPil, transformers.AutoTokenizer)]
        declared, _ = processor_class.get_processor_dict(**where)
        return processor_class.from_args_and_dict(parts, declared)

    def grids(self, images: Sequence[Image.Image], inputs: dict[str, Any]) -> list[PatchGrid | None]:
        """Derive the grids from the `<row_i_col_j>` tokens of each prompt."""
        side = round(self.processor.image_seq_len**0.5)
        grids: list[PatchGrid | None] = []
        for ids in inputs["input_ids"].tolist():
            tokens = set(self.tokenizer.convert_ids_to_tokens(ids))
            marks = [t.strip("<>").split("_") for t in tokens if t.startswith("<row_")]
            if not marks:
                grids.append(PatchGrid.single(side, side))
                continue
            down, across = max(int(m[1]) for m in marks), max(int(m[3]) for m in marks)
            grids.append(PatchGrid.tiled(across, down, side, side, thumbnail=True))
        return grids


def merged_grids(image_grid_thw: Tensor, merge: int) -> list[PatchGrid | None]:
    """Convert Qwen's `(B, 3)` time, height and width in patches to grids of tokens."""
    return [PatchGrid.single(h // merge, w // merge) for _, h, w in image_grid_thw.tolist()]


def _backbone(kind: type[RetrievalHead], class_prefix: str) -> Backbone:
    def load(checkpoint: Checkpoint) -> RetrievalHead:
        model = checkpoint.pretrained(getattr(transformers, f"{class_prefix}ForRetrieval"))
        processor = kind.load_processor(getattr(transformers, f"{class_prefix}Processor"), checkpoint)
        layers = len(model.get_submodule(kind.layers_path))
        settings = checkpoint.choose_layer_settings(kind.family, layers, model)
        return kind(model, processor, settings, checkpoint.name)

    return Backbone(load, lambda checkpoint: checkpoint.model_type == kind.family)


COLPALI = _backbone(ColPali, "ColPali")
COLQWEN2 = _backbone(ColQwen2, "ColQwen2")
COLMODERNVBERT = _backbone(ColModernVBert, "ColModernVBert")
