"""Nemotron ColEmbed: remote code with a SigLIP tower and a bidirectional Llama; hidden states are the embeddings.

The checkpoint brings its own preprocessing (`forward_images`, `forward_queries`). We run that and listen: a
hook on the model sees the token ids before the language layers run, another takes their final states.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.model_lock import model_lock
from anchorfold.attention.signals import Signal
from anchorfold.attention.tap import AttentionTap
from anchorfold.backbones.base import PageBatch, Retriever
from anchorfold.backbones.failures import running_model
from anchorfold.backbones.query_words import label_tokens
from anchorfold.page import PageState, PatchGrid

TILE_PIXELS = 512
PATIENCE_AREA = 0.6  # a tiling that shows 60 % of the page's pixels is good enough


class NemotronColEmbed(Retriever):
    """Nemotron ColEmbed-3B v2: 512-pixel tiles, at most 8 and a thumbnail, 256 tokens each, 3,072 dimensions."""

    family = "nemotron"

    def __init__(self, model: nn.Module, settings: LayerSettings, name: str) -> None:
        super().__init__(model, settings, name)
        for method in ("forward_images", "forward_queries"):
            if not hasattr(model, method):
                raise ValueError(f"{name} is no ColEmbed model: its remote code has no {method}().")

    @property
    def language_model(self) -> Any:
        """The Llama inside."""
        return self.model.language_model

    @property
    def attention_layers(self) -> list[nn.Module]:
        """Its attention modules."""
        inner = getattr(self.language_model, "model", self.language_model)
        return [layer.self_attn for layer in inner.layers]

    @property
    def projection(self) -> Any:
        """Hidden states are in retrieval space."""
        return None

    def _batch_states(self, images: list[Image.Image], signals: list[Signal]) -> Iterator[PageState]:
        with AttentionTap(self.model, self.attention_layers, signals) as tap, self._listen() as heard:
            heard["before"] = tap.look_at
            self.model.forward_images(images, batch_size=len(images))
        for image, z, visual, found in zip(images, heard["hidden"], heard["visual"], tap.pages, strict=True):
            yield PageState(z[visual], self.project, found, self.grid(image, int(visual.sum())))

    def query_vectors(self, texts: list[str]) -> list[Tensor]:
        """The model's own query embeddings without padding."""
        with self._listen() as heard:
            self.model.forward_queries(texts, batch_size=len(texts))
        return [F.normalize(z[mask].float(), dim=-1) for z, mask in zip(heard["hidden"], heard["mask"], strict=True)]

    def query_labels(self, text: str) -> tuple[list[str], list[int | None]]:
        """Of the query as the remote code tokenises it."""
        with self._listen() as heard:
            self.model.forward_queries([text], batch_size=1)
        tokenizer = getattr(self.model, "tokenizer", None) or self.model.processor.tokenizer
        return label_tokens(text, heard["inputs"]["input_ids"][0][heard["mask"][0]], tokenizer)

    def grid(self, image: Image.Image, tokens: int) -> PatchGrid:
        """The tiling of a page, from its size and its number of visual tokens."""
        config = self.model.config
        side = getattr(config, "force_image_size", None) or TILE_PIXELS
        across, down = choose_tiling(*image.size, side, getattr(config, "max_input_tiles", 8) or 8)
        tiles = across * down
        thumbnail = tiles > 1 and bool(getattr(config, "use_thumbnail", True))
        patches = round((tokens / (tiles + thumbnail)) ** 0.5)
        found = PatchGrid.tiled(across, down, patches, patches, thumbnail)
        # A checkpoint that tiles by another rule still gets the right number of places, in token order.
        return found if len(found) == tokens else PatchGrid.single(1, tokens)

    def prepare_pages(self, images: Sequence[Image.Image]) -> PageBatch:
        """Inputs as the remote code prepares them, caught on their way into the model."""
        with self._listen() as heard:
            self.model.forward_images(list(images), batch_size=len(images))
        return PageBatch(heard["inputs"], heard["visual"], heard["mask"], [None] * len(images))

    @torch.no_grad()
    def _hidden(self, inputs: dict[str, Any]) -> Tensor:
        with self._listen() as heard:
            self.model(**inputs)
        return heard["hidden"]

    @contextmanager
    def _listen(self) -> Iterator[dict[str, Any]]:
        heard: dict[str, Any] = {}

        def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            ids = kwargs["input_ids"]
            mask = kwargs.get("attention_mask")
            mask = torch.ones_like(ids).bool() if mask is None else mask.bool()
            visual = (ids == self.model.config.img_context_token_id) & mask
            heard.update(inputs=dict(kwargs), visual=visual, mask=mask)
            if "before" in heard:
                heard["before"](visual, mask)

        def after(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            heard["hidden"] = output.last_hidden_state if hasattr(output, "last_hidden_state") else output[0]

        inner = getattr(self.language_model, "model", self.language_model)
        with model_lock(self.model), running_model(), torch.no_grad(), ExitStack() as stack:
            stack.callback(self.model.register_forward_pre_hook(before, with_kwargs=True).remove)
            stack.callback(inner.register_forward_hook(after).remove)
            yield heard


def choose_tiling(width: int, height: int, side: int, most: int) -> tuple[int, int]:
    """Tiles across and down: the closest shape that shows most of the page's pixels; fewer tiles if equal."""
    shapes = [(a, d) for n in range(1, most + 1) for a in range(1, n + 1) for d in range(1, n + 1) if a * d == n]

    def quality(shape: tuple[int, int]) -> float:
        wanted, given = width / height, shape[0] / shape[1]
        shown = shape[0] * shape[1] * side * side / (width * height)
        return min(shown, PATIENCE_AREA) * min(given / wanted, wanted / given)

    return max(shapes, key=quality)
