"""Base classes of backbones: encode pages and queries, and capture attention for compressors."""

from __future__ import annotations

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.model_lock import current_thread_only, model_lock
from anchorfold.attention.signals import Signal
from anchorfold.attention.tap import AttentionTap
from anchorfold.attention.vision_tower import find_tower
from anchorfold.backbones.encoder import ExplainedQuery, label_tokens
from anchorfold.backbones.failures import preparing_pages, running_model
from anchorfold.backbones.weights import calibration_file, model_kind, weights_fingerprint
from anchorfold.compressors import Compressor, FullIndex
from anchorfold.errors import CausalBackboneWarning, InvalidArgumentError
from anchorfold.page import EncodedPage, PageState, PatchGrid

PageImage = Image.Image | str | Path


@dataclass
class PageBatch:
    """Model inputs of a batch of pages, with masks `(B, T)` of visual tokens and of padding, and patch grids."""

    inputs: dict[str, Any]
    visual: Tensor
    attention_mask: Tensor | None
    grids: list[PatchGrid | None]


class BackboneEncoder(ABC):
    """Encoder of pages and queries with one backbone, created by `anchorfold.load`.

    Thread-safe: forward passes are serialised, compression runs in parallel.

    Examples:
        >>> (query,) = model.encode_queries(["net revenue by region"])  # (tokens, d)
        >>> query.shape[1] == model.dim
        True
    """

    family: str
    page_pixels: ClassVar[int] = 2_000_000  # larger page images do not improve the vectors
    truncatable: ClassVar[bool] = True  # leading components of a vector can be used alone

    def __init__(self, model: Any, layer_settings: LayerSettings, name: str) -> None:
        self.model = model.eval()
        self._tower_blocks = len(tower.blocks) if (tower := find_tower(model)) else 0
        self.layer_settings = layer_settings
        self.name = name
        self.load_options: dict[str, Any] = {}  # options that `load` requires besides the name
        self._causal: bool | None = None
        self._warned = False
        self._truncated: int | None = None

    # Implemented by each backbone.

    @property
    @abstractmethod
    def attention_layers(self) -> list[nn.Module]:
        """Attention modules of the layers that process visual tokens together, in order."""

    @property
    @abstractmethod
    def projection(self) -> Any:
        """Retrieval projection: a linear layer, or an identity if hidden states are in retrieval space."""

    @abstractmethod
    def prepare_pages(self, images: Sequence[Image.Image]) -> PageBatch:
        """Return model inputs for a batch of pages."""

    @abstractmethod
    def query_vectors(self, texts: list[str]) -> list[Tensor]:
        """Return vectors `(tokens, d_r)` of each query in a batch."""

    @abstractmethod
    def query_labels(self, text: str) -> tuple[list[str], list[int | None]]:
        """Return the words of a query, and the word number of each vector (None for special tokens)."""

    def forward(self, inputs: dict[str, Any]) -> None:
        """Run the model; hidden states are captured at the input of the projection."""
        self.model(**inputs)

    # Common to all backbones.

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        device: torch.device = next(self.model.parameters()).device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Precision of the model."""
        dtype: torch.dtype = next(self.model.parameters()).dtype
        return dtype

    @property
    def layer_settings(self) -> LayerSettings:
        """Layers whose attention compressors read."""
        return self._layer_settings

    @layer_settings.setter
    def layer_settings(self, settings: LayerSettings) -> None:
        # The vision tower belongs to the model and not to a calibration.
        self._layer_settings = replace(settings, tower=self._tower_blocks)

    @cached_property
    def dim(self) -> int:
        """Dimension of the vectors."""
        return self.encode_queries(["page"])[0].shape[1]

    def truncate(self, dim: int) -> None:
        """Use the first `dim` components of all vectors from now on, normalised again.

        Raises:
            InvalidArgumentError: the vectors have fewer components, or cannot be truncated.
        """
        if not self.truncatable:
            raise InvalidArgumentError(f"the vectors of {self.name} cannot be truncated: leave out dim.")
        if not 1 <= dim <= self.dim:
            raise InvalidArgumentError(
                f"dim must be between 1 and the {self.dim} dimensions of {self.name}, got {dim}."
            )
        self._truncated = self.dim = dim
        self.load_options = {**self.load_options, "dim": dim}
        self.__dict__.pop("fingerprint", None)

    @property
    def calibration_file(self) -> Path:
        """Path from which `load` reads the calibration of this model, and to which it is written."""
        options = {k: v for k, v in self.load_options.items() if k in ("revision", "bidirectional")}
        return calibration_file(self.name, self.model.state_dict(), **options)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of the weights that is the same on every device and in every precision."""
        kind = model_kind(self.family, self.is_causal, self._truncated)
        return weights_fingerprint(kind, self.model.state_dict())

    @property
    def default_batch_size(self) -> int:
        """Default number of pages per forward pass."""
        return 1 if self.device.type == "cpu" else 4

    def project(self, hidden: Tensor) -> Tensor:
        """Apply the retrieval projection `(k, d) -> (k, d_r)` in float32, independent of the model's precision."""
        return self.project_fully(hidden)[..., : self._truncated]

    def project_fully(self, hidden: Tensor) -> Tensor:
        """Apply the projection without truncation."""
        return apply_projection(self.projection, hidden)

    def open_page(self, page: PageImage) -> Any:
        """Return a page image in RGB."""
        if isinstance(page, Image.Image):
            return page.convert("RGB")
        with Image.open(page) as opened:
            return opened.convert("RGB")

    def page_states(
        self, images: Iterable[PageImage], signals: Iterable[Signal] = (), batch_size: int | None = None
    ) -> Iterator[PageState]:
        """Encode pages once and yield the input of compressors: hidden states and signals.

        Raises:
            ValueError, OSError: a page of this batch cannot be encoded.
            BrokenModelError: the model cannot run, or not with this batch size.
        """
        signals = list(signals)
        if not all(signal.suits_causal for signal in signals):
            self.warn_if_causal()
        for batch in batched(map(self.open_page, images), batch_size or self.default_batch_size):
            # Preparation too: a tokenizer keeps its padding and truncation between calls.
            with model_lock(self.model):
                with preparing_pages():
                    prepared = self.prepare_pages(batch)
                states = self.prepared_states(prepared, signals)
            yield from states

    def encode_documents(
        self, images: Iterable[PageImage], compressor: Compressor | None = None, batch_size: int | None = None
    ) -> list[EncodedPage]:
        """Encode pages as compressed multi-vectors, on the CPU in float32.

        Args:
            images: PIL images or paths.
            compressor: compression method; None keeps the full index.
            batch_size: pages per forward pass; it does not change the result.
        """
        compressor = compressor or FullIndex()
        states = self.page_states(images, compressor.signals(self.layer_settings), batch_size)
        return [self.compress_page(state, compressor) for state in states]

    @torch.no_grad()
    def compress_page(self, state: PageState, compressor: Compressor) -> EncodedPage:
        """Compress one encoded page."""
        with running_model():
            page = compressor.compress(state, self.layer_settings)
            return EncodedPage(
                page.vectors.cpu(), page.anchors.cpu(), page.groups.cpu(), page.weights.cpu(), state.grid
            )

    @torch.no_grad()
    def encode_queries(self, texts: Sequence[str], batch_size: int = 32) -> list[Tensor]:
        """Encode queries as L2-normalised vectors `(tokens, d_r)`, on the CPU in float32; they are never compressed."""
        if isinstance(texts, str):
            raise TypeError("encode_queries takes a list of texts; wrap a single one in a list.")
        batches = (self.query_vectors(batch) for batch in batched(iter(texts), batch_size))
        return [self._shorten(vectors.float().cpu()) for batch in batches for vectors in batch]

    def _shorten(self, vectors: Tensor) -> Tensor:
        if self._truncated is None:
            return vectors
        return F.normalize(vectors[:, : self._truncated], dim=-1)

    def explain_query(self, text: str) -> ExplainedQuery:
        """Return the vectors of a query and the word of each vector."""
        (vectors,) = self.encode_queries([text])
        words, labels = self.query_labels(text)
        if len(labels) != len(vectors):  # the tokenizer does not align: treat the query as one word
            words, labels = [text], [0] * len(vectors)
        return ExplainedQuery(vectors, words, labels)

    @property
    def is_causal(self) -> bool:
        """Whether the first visual token cannot attend to the last one (measured once by perturbation)."""
        if self._causal is None:
            with model_lock(self.model):
                self._causal = self._measure_causality() if self._causal is None else self._causal
        return self._causal

    def warn_if_causal(self) -> None:
        """Warn once if the backbone is causal."""
        if not self._warned and self.is_causal:
            self._warned = True
            warnings.warn(
                f"{self.name} is causal: its visual tokens cannot attend to later ones, so attention accumulates on "
                "the first tokens of a page, and AnchorFold, SAP and DocPruner are not meaningful. Use the "
                "method auto (focus-clustering on the mirrored-symmetric graph for this model), semantic-clustering, "
                "or a backbone with bidirectional attention.",
                CausalBackboneWarning,
                stacklevel=3,
            )

    def prepared_states(self, batch: PageBatch, signals: list[Signal]) -> list[PageState]:
        """Encode inputs that are on the model's device already, as `page_states` does."""
        with running_model():
            with AttentionTap(self.model, self.attention_layers, signals) as tap:
                tap.set_visual_tokens(batch.visual, batch.attention_mask)
                hidden = self._hidden(batch.inputs)
            pages = zip(hidden, batch.visual, tap.pages, batch.grids, strict=True)
            return [PageState(z[visual], self.project, values, grid) for z, visual, values, grid in pages]

    @torch.no_grad()
    def _hidden(self, inputs: dict[str, Any]) -> Tensor:
        """Return final hidden states `(B, T, d)` before the projection."""
        with model_lock(self.model), running_model(), self._projection_input() as captured:
            self.forward(inputs)
            return captured[-1]

    @contextmanager
    def _projection_input(self) -> Iterator[list[Tensor]]:
        captured: list[Tensor] = []
        hook = current_thread_only(lambda _, args: captured.append(args[0]))
        with self.projection.register_forward_pre_hook(hook):
            yield captured

    def _measure_causality(self) -> bool:
        batch = self.prepare_pages([Image.new("RGB", (224, 224), "white")])
        visual = batch.visual[0]
        return ignores_last_token(lambda: self._hidden(batch.inputs)[0, visual], self.attention_layers[0], visual)


class PromptedEncoder(BackboneEncoder):
    """A backbone that encodes queries with the same model as pages."""

    tokenizer: Any

    @abstractmethod
    def prepare_queries(self, texts: Sequence[str]) -> tuple[dict[str, Any], Tensor]:
        """Return model inputs for queries, and a mask `(B, T)` of the tokens to score."""

    def query_vectors(self, texts: list[str]) -> list[Tensor]:
        """Return projected, L2-normalised hidden states of the tokens to score."""
        with model_lock(self.model):
            inputs, scored = self.prepare_queries(texts)
            hidden = self._hidden(inputs)
        vectors = F.normalize(self.project(hidden.float()), dim=-1)
        return [v[s] for v, s in zip(vectors, scored.bool(), strict=True)]

    def query_labels(self, text: str) -> tuple[list[str], list[int | None]]:
        """Return the words of a query, and the word number of each scored token."""
        with model_lock(self.model):
            inputs, scored = self.prepare_queries([text])
        return label_tokens(text, inputs["input_ids"][0][scored[0].bool()], self.tokenizer)


def ignores_last_token(visual_states: Callable[[], Tensor], first_layer: nn.Module, visual: Tensor) -> bool:
    """Return whether the first visual token does not change if the last one is perturbed.

    Args:
        visual_states: run the model on one page and return the final states `(n, d)` of its visual tokens.
        first_layer: first attention module of the model, where the last token is perturbed.
        visual: `(T,)` mask of visual tokens.
    """
    last = int(visual.nonzero()[-1])

    @current_thread_only
    def perturb(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        states = (kwargs["hidden_states"] if "hidden_states" in kwargs else args[0]).clone()
        states[0, last] += torch.linspace(-3, 3, states.shape[-1], dtype=states.dtype, device=states.device)
        if "hidden_states" in kwargs:
            return args, {**kwargs, "hidden_states": states}
        return (states, *args[1:]), kwargs

    before = visual_states()[0]
    with first_layer.register_forward_pre_hook(perturb, with_kwargs=True):
        after = visual_states()[0]
    return bool(torch.equal(before, after))


def apply_projection(layer: Any, hidden: Tensor) -> Tensor:
    """Apply a linear layer with its adapters, or an identity, in the precision of its input."""
    if isinstance(layer, nn.Identity):
        return hidden
    layer = plain_linear(layer)
    weight, bias = layer.weight.detach(), layer.bias
    return F.linear(hidden, weight.to(hidden.dtype), None if bias is None else bias.detach().to(hidden.dtype))


def plain_linear(module: nn.Module) -> nn.Module:
    """Return a linear layer with its LoRA adapters merged, in float32 if they were not merged before."""
    if not hasattr(module, "get_base_layer"):
        return module
    if not module.merged:
        module = copy.deepcopy(module).float()
        module.merge()  # type: ignore[operator]
    base: nn.Module = module.get_base_layer()  # type: ignore[operator]
    return base


def batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of at most `size` items."""
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
