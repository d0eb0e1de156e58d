"""A retriever: a backbone that encodes pages and queries, and lets compressors listen to its attention."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.model_lock import model_lock, own_thread
from anchorfold.attention.signals import Signal
from anchorfold.attention.tap import AttentionTap
from anchorfold.backbones.calibrations import calibration_file
from anchorfold.backbones.causality import CausalBackboneWarning, first_is_blind_to_last
from anchorfold.backbones.failures import preparing_pages, running_model
from anchorfold.backbones.fingerprint import kind_of, weights_fingerprint
from anchorfold.backbones.query_words import ExplainedQuery, label_tokens
from anchorfold.compressors import Compressor, FullIndex
from anchorfold.page import EncodedPage, PageState, PatchGrid

PageImage = Image.Image | str | Path


@dataclass
class PageBatch:
    """Model inputs of some pages: `visual (B, T)` marks their visual tokens, `attention_mask (B, T)` their padding."""

    inputs: dict[str, Any]
    visual: Tensor
    attention_mask: Tensor | None
    grids: list[PatchGrid | None]


class Retriever(ABC):
    """Encodes pages and queries with one backbone. Make one with `anchorfold.load`.

    Threads may share it: passes through the model take turns, compression does not wait.

    >>> (query,) = model.encode_queries(["net revenue by region"])  # (tokens, d)
    >>> query.shape[1] == model.dim
    True
    """

    family: str
    page_pixels: ClassVar[int] = 2_000_000  # a page rendered larger than this gains nothing

    def __init__(self, model: Any, settings: LayerSettings, name: str) -> None:
        self.model = model.eval()
        self.settings = settings
        self.name = name
        self.load_options: dict[str, Any] = {}  # what `load` needs besides the name to load the same again
        self._causal: bool | None = None
        self._warned = False

    # What a backbone must say of itself.

    @property
    @abstractmethod
    def attention_layers(self) -> list[nn.Module]:
        """The attention modules of the layers in which visual tokens meet, in order."""

    @property
    @abstractmethod
    def projection(self) -> Any:
        """The retrieval projection: a linear layer, or an identity if hidden states are in retrieval space already."""

    @abstractmethod
    def prepare_pages(self, images: Sequence[Image.Image]) -> PageBatch:
        """Model inputs for some pages."""

    @abstractmethod
    def query_vectors(self, texts: list[str]) -> list[Tensor]:
        """The vectors `(tokens, d_r)` of each query of a batch."""

    def forward(self, inputs: dict[str, Any]) -> None:
        """Run the model; its hidden states are taken on their way into the projection."""
        self.model(**inputs)

    # What every backbone shares.

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """The precision that the model computes in."""
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return dtype

    @cached_property
    def dim(self) -> int:
        """The dimension of its vectors."""
        return self.encode_queries(["page"])[0].shape[1]

    @property
    def calibration_file(self) -> Path:
        """Where a calibration of this model is looked for when it is loaded, and so where it is written."""
        options = {k: v for k, v in self.load_options.items() if k in ("revision", "bidirectional")}
        return calibration_file(self.name, self.model.state_dict(), **options)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the weights that is the same on every device and in every precision."""
        return weights_fingerprint(kind_of(self.family, self.is_causal), self.model.state_dict())

    def project(self, hidden: Tensor) -> Tensor:
        """The retrieval projection in float32, whatever the model's own precision: `(k, d) -> (k, d_r)`."""
        return apply_projection(self.projection, hidden)

    def page_states(
        self, images: Iterable[PageImage], signals: Iterable[Signal] = (), batch_size: int | None = None
    ) -> Iterator[PageState]:
        """Encode pages once and yield what any compressor needs: hidden states and the wanted signals.

        Raises:
            ValueError, OSError: one of the pages of this batch cannot be encoded.
            BrokenModelError: the model cannot run at all, or not with so many pages at once.
        """
        signals = list(signals)
        if signals:
            self.warn_if_causal()
        for batch in batched((open_image(i) for i in images), batch_size or self.default_batch):
            yield from self._batch_states(batch, signals)

    def encode_pages(
        self, images: Iterable[PageImage], compressor: Compressor | None = None, batch_size: int | None = None
    ) -> list[EncodedPage]:
        """Pages as compressed multi-vectors, on the CPU in float32.

        Args:
            images: PIL images or paths.
            compressor: how to make them smaller; None keeps the full index.
            batch_size: pages a forward pass; it never changes the result.
        """
        compressor = compressor or FullIndex()
        signals = compressor.signals(self.settings)
        return [self.compress(state, compressor) for state in self.page_states(images, signals, batch_size=batch_size)]

    @torch.no_grad()
    def compress(self, state: PageState, compressor: Compressor) -> EncodedPage:
        """One encoded page, compressed."""
        with running_model():
            folded = compressor.compress(state, self.settings)
            return EncodedPage(
                folded.vectors.cpu(), folded.anchors.cpu(), folded.groups.cpu(), folded.weights.cpu(), state.grid
            )

    @torch.no_grad()
    def encode_queries(self, texts: Sequence[str], batch_size: int = 32) -> list[Tensor]:
        """Queries as `(tokens, d_r)` L2-normalised vectors, on the CPU in float32. Compression never touches them."""
        if isinstance(texts, str):
            raise TypeError("encode_queries takes a list of texts; wrap a single one in a list.")
        queries: list[Tensor] = []
        for batch in batched(iter(texts), batch_size):
            queries.extend(vectors.float().cpu() for vectors in self.query_vectors(batch))
        return queries

    def explain_query(self, text: str) -> ExplainedQuery:
        """A query's vectors, and which of its words each belongs to."""
        (vectors,) = self.encode_queries([text])
        words, labels = self.query_labels(text)
        if len(labels) != len(vectors):  # a tokeniser that does not tell: the query is one piece of evidence
            words, labels = [text], [0] * len(vectors)
        return ExplainedQuery(vectors, words, labels)

    @abstractmethod
    def query_labels(self, text: str) -> tuple[list[str], list[int | None]]:
        """The words of a query, and for each of its vectors the number of its word, None for special tokens."""

    @property
    def default_batch(self) -> int:
        """Pages a forward pass if the caller does not say."""
        return 1 if self.device.type == "cpu" else 4

    @property
    def is_causal(self) -> bool:
        """Whether the first visual token is blind to the last one (found by perturbing it, once)."""
        if self._causal is None:
            with model_lock(self.model):
                self._causal = self._find_causal() if self._causal is None else self._causal
        return self._causal

    def warn_if_causal(self) -> None:
        """Say once what a causal backbone means for compressors that listen to its attention."""
        if not self._warned and self.is_causal:
            self._warned = True
            warnings.warn(CausalBackboneWarning.of(self.name), stacklevel=3)

    def _batch_states(self, images: list[Image.Image], signals: list[Signal]) -> Iterable[PageState]:
        with model_lock(self.model):  # preparing too: a tokenizer keeps its padding and truncation between calls
            with preparing_pages():
                batch = self.prepare_pages(images)
            return self.prepared_states(batch, signals)

    def prepared_states(self, batch: PageBatch, signals: list[Signal]) -> list[PageState]:
        """As `page_states`, from inputs that are on the model's device already."""
        with running_model():
            with AttentionTap(self.model, self.attention_layers, signals) as tap:
                tap.look_at(batch.visual, batch.attention_mask)
                hidden = self._hidden(batch.inputs)
            pages = zip(hidden, batch.visual, tap.pages, batch.grids, strict=True)
            return [PageState(z[visual], self.project, signal, grid) for z, visual, signal, grid in pages]

    @torch.no_grad()
    def _hidden(self, inputs: dict[str, Any]) -> Tensor:
        """`(B, T, d)` final hidden states before the projection."""
        with model_lock(self.model), running_model(), self._projection_input() as caught:
            self.forward(inputs)
            return caught[-1]

    @contextmanager
    def _projection_input(self) -> Iterator[list[Tensor]]:
        caught: list[Tensor] = []
        handle = self.projection.register_forward_pre_hook(own_thread(lambda _, args: caught.append(args[0])))
        try:
            yield caught
        finally:
            handle.remove()

    def _find_causal(self) -> bool:
        batch = self.prepare_pages([Image.new("RGB", (224, 224), "white")])
        (visual,) = batch.visual[:1]
        return first_is_blind_to_last(lambda: self._hidden(batch.inputs)[0, visual], self.attention_layers[0], visual)


class PromptedRetriever(Retriever):
    """A retriever whose queries pass through the same model as its pages."""

    @abstractmethod
    def prepare_queries(self, texts: Sequence[str]) -> tuple[dict[str, Any], Tensor]:
        """Model inputs for some queries, and which of their tokens `(B, T)` score."""

    def query_vectors(self, texts: list[str]) -> list[Tensor]:
        """Projected and L2-normalised hidden states of the tokens that score."""
        with model_lock(self.model):
            inputs, scores = self.prepare_queries(texts)
            hidden = self._hidden(inputs)
        vectors = F.normalize(self.project(hidden.float()), dim=-1)
        return [v[s] for v, s in zip(vectors, scores.bool(), strict=True)]

    tokenizer: Any

    def query_labels(self, text: str) -> tuple[list[str], list[int | None]]:
        """Of the tokens that score."""
        with model_lock(self.model):
            inputs, scores = self.prepare_queries([text])
        return label_tokens(text, inputs["input_ids"][0][scores[0].bool()], self.tokenizer)


def apply_projection(layer: Any, hidden: Tensor) -> Tensor:
    """A linear layer, or an identity, in the precision of what it is given."""
    if isinstance(layer, nn.Identity):
        return hidden
    weight, bias = layer.weight.detach(), layer.bias
    return F.linear(hidden, weight.to(hidden.dtype), None if bias is None else bias.detach().to(hidden.dtype))


def open_image(image: PageImage) -> Image.Image:
    """A page image in RGB."""
    if isinstance(image, Image.Image):
        return image.convert("RGB")
    with Image.open(image) as opened:
        return opened.convert("RGB")


def batched(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    """Lists of at most `size` items."""
    batch: list[Any] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def submodule(model: nn.Module, path: str) -> Any:
    """The module at a dotted path."""
    for name in path.split("."):
        model = getattr(model, name)
    return model
