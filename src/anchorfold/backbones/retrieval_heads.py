"""Late-interaction models that run through a processor of transformers: ColPali, ColQwen2, ColModernVBert, ColGemma3.

A family is a `HeadLayout`: the location of the language layers and the projection, and its prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import transformers
from PIL import Image
from torch import Tensor, nn

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.base import PageBatch, PromptedEncoder
from anchorfold.backbones.checkpoint import Backbone, Checkpoint
from anchorfold.backbones.page_grids import image_token_id, patch_grids


@dataclass(frozen=True)
class HeadLayout:
    """A family of models.

    Args:
        family: family name.
        layers: path of the language layers in the model.
        processor: class in transformers.
        attention: name of the attention module in a layer.
        projection: name of the projection in the model.
        image_processor: `module.Class` in `transformers.models`, if transformers finds it only with torchvision.
        prefix_mask: set `token_type_ids` to zero, which keeps the whole sequence in the bidirectional prefix; without
            them the mask would depend on kernel and padding.
        page_text: text of a page in the chat template; None if the processor writes the prompts.
        query_text: text of a query in the chat template, with `{text}` in place of the query.
    """

    family: str
    layers: str
    processor: str
    attention: str = "self_attn"
    projection: str = "embedding_proj_layer"
    image_processor: str | None = None
    prefix_mask: bool = False
    page_text: str | None = None
    query_text: str = "{text}"

    def load_processor(self, checkpoint: Checkpoint) -> Any:
        """Load the processor; it resizes pages with Pillow, so that results do not depend on torchvision."""
        processor_class = getattr(transformers, self.processor)
        location = {"pretrained_model_name_or_path": checkpoint.name, "revision": checkpoint.revision}
        if self.image_processor is None:
            return processor_class.from_pretrained(**location, backend="pil")
        module, _, name = self.image_processor.rpartition(".")
        images = getattr(import_module(f"transformers.models.{module}"), name)
        parts = [part.from_pretrained(**location) for part in (images, transformers.AutoTokenizer)]
        declared, _ = processor_class.get_processor_dict(**location)
        return processor_class.from_args_and_dict(parts, declared)

    def encoder(self, model: nn.Module, source: Checkpoint, checkpoint: Checkpoint) -> RetrievalHead:
        """Return an encoder with the processor of `source` and the name and options of `checkpoint`."""
        settings = checkpoint.choose_layer_settings(self.family, len(model.get_submodule(self.layers)), model)  # type: ignore[arg-type]
        return RetrievalHead(model, self.load_processor(source), settings, checkpoint.name, self)


class RetrievalHead(PromptedEncoder):
    """A model with a projection and its processor."""

    def __init__(
        self, model: nn.Module, processor: Any, layer_settings: LayerSettings, name: str, head: HeadLayout
    ) -> None:
        super().__init__(model, layer_settings, name)
        self.head, self.family = head, head.family
        self.processor, self.tokenizer = processor, processor.tokenizer
        if head.page_text is not None:
            self.tokenizer.padding_side = "left"

    @property
    def attention_layers(self) -> list[nn.Module]:
        """Attention modules of the language model."""
        return [getattr(layer, self.head.attention) for layer in self.model.get_submodule(self.head.layers)]

    @property
    def projection(self) -> Any:
        """Linear layer from final states to retrieval space."""
        return getattr(self.model, self.head.projection)

    def prepare_pages(self, images: Sequence[Image.Image]) -> PageBatch:
        """Return the processor's page inputs."""
        if self.head.page_text is None:
            encoded = self.processor.process_images(images=list(images), return_tensors="pt")
        else:
            content = [{"type": "image"}, {"type": "text", "text": self.head.page_text}]
            encoded = self._chat([content] * len(images), images=[[image] for image in images])
        inputs = self._to_device(encoded)
        inputs.pop("labels", None)
        mask = inputs["attention_mask"]
        visual = (inputs["input_ids"] == image_token_id(self.processor)) & mask.bool()
        return PageBatch(inputs, visual, mask, patch_grids(self.processor, inputs))

    def prepare_queries(self, texts: Sequence[str]) -> tuple[dict[str, Any], Tensor]:
        """Return the processor's query inputs; all tokens except padding are scored."""
        if self.head.page_text is None:
            encoded = self.processor.process_queries(text=list(texts), return_tensors="pt")
        else:
            texts = [self.head.query_text.replace("{text}", text) for text in texts]
            encoded = self._chat([[{"type": "text", "text": text}] for text in texts])
        inputs = self._to_device(encoded)
        return inputs, inputs["attention_mask"]

    def _chat(self, contents: list[list[dict[str, str]]], **images: Any) -> Any:
        """Render messages with the checkpoint's chat template and process them."""
        prompts = [
            self.tokenizer.apply_chat_template([{"role": "user", "content": content}], tokenize=False)
            for content in contents
        ]
        return self.processor(text=prompts, return_tensors="pt", padding=True, **images)

    def _to_device(self, inputs: Any) -> dict[str, Any]:
        moved = {k: v.to(self.device) if isinstance(v, Tensor) else v for k, v in inputs.items()}
        if "pixel_values" in moved:
            moved["pixel_values"] = moved["pixel_values"].to(self.dtype)
        if self.head.prefix_mask:
            moved["token_type_ids"] = torch.zeros_like(moved["input_ids"])
        return moved


COLPALI_HEAD = HeadLayout("colpali", "vlm.language_model.layers", "ColPaliProcessor", prefix_mask=True)
COLGEMMA3_HEAD = HeadLayout(
    "colgemma3", "language_model.layers", "Gemma3Processor", projection="custom_text_proj",
    image_processor="gemma3.image_processing_pil_gemma3.Gemma3ImageProcessorPil",
    page_text="Describe this image", query_text="Query: {text}",
)  # fmt: skip
HEADS = (
    COLPALI_HEAD,
    HeadLayout("colqwen2", "vlm.language_model.layers", "ColQwen2Processor"),
    HeadLayout(
        "colmodernvbert", "vlm.text_model.layers", "ColModernVBertProcessor", attention="attn",
        image_processor="idefics3.image_processing_pil_idefics3.Idefics3ImageProcessorPil",
    ),
)  # fmt: skip


def load_head(checkpoint: Checkpoint) -> RetrievalHead:
    """Load a transformers `*ForRetrieval` model by its `model_type`, which is the family name."""
    head = next(head for head in HEADS if head.family == checkpoint.model_type)
    model_class = getattr(transformers, head.processor.replace("Processor", "ForRetrieval"))
    return head.encoder(checkpoint.pretrained(model_class), checkpoint, checkpoint)


BACKBONE = Backbone(load_head, lambda checkpoint: checkpoint.model_type in {head.family for head in HEADS})
