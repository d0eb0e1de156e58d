"""Base classes of compressors, and the registry that finds them by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch

from anchorfold._registry import Registry
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import Signal
from anchorfold.core.budget import check_budget, vector_budget
from anchorfold.core.fold import CompressedPage
from anchorfold.errors import AnchorFoldError
from anchorfold.page import PageState


class PageStateEncoder(Protocol):
    """A model that `Compressor.calibrate_on` accepts."""

    layer_settings: LayerSettings

    def page_states(self, images: Iterable[Any], signals: Iterable[Signal] = ()) -> Iterable[PageState]:
        """Encode pages and capture signals."""
        ...


class Compressor(ABC):
    """Reduces the N vectors of a page.

    A subclass has a `name` and implements `compress`. If it requires attention, `signals` lists the values, which are
    then in `page.signals`. The result must depend on the page alone, not on its batch. Constructor parameters are
    attributes of the same name, so that an index can store them and create the compressor again.

    Examples:
        >>> class Middle(Compressor):
        ...     name = "middle"
        ...
        ...     def compress(self, page, settings):
        ...         return keep_tokens(page, torch.tensor([len(page) // 2]))
        >>> len(model.encode_documents(images[:1], Middle())[0])
        1
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""  # display name; the name if empty
    normalize: ClassVar[bool] = True  # whether its vectors are L2-normalised
    trained: ClassVar[bool] = False  # requires a model that was trained for it
    calibration_pages: ClassVar[int] = 0  # held-out pages that `calibrate` requires
    # Named options for evaluations, such as ablations; not inherited.
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @classmethod
    def with_budget(cls, ratio: float | None = None, cap: int | None = None) -> Self:
        """Create a compressor that keeps a share of each page's vectors, or at most `cap`."""
        return cls(**({"ratio": ratio} if cap is None else {"cap": cap}))

    @property
    def options(self) -> dict[str, Any]:
        """Constructor arguments that differ from the defaults: `compressor(c.name, **c.options)` creates a copy."""
        parameters = inspect.signature(type(self).__init__).parameters.values()
        named = [p for p in parameters if p.name != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        return {p.name: getattr(self, p.name) for p in named if getattr(self, p.name) != p.default}

    @property
    def ready(self) -> bool:
        """Whether it can compress pages; False until `calibrate` was called, where that is required."""
        return True

    def signals(self, settings: LayerSettings) -> Sequence[Signal]:
        """Return the signals to capture on a backbone with these layer settings."""
        return ()

    def unsupported_reason(self, settings: LayerSettings) -> str | None:
        """Return why a backbone does not support this compressor, or None if it does."""
        return None

    def calibrate(self, pages: Iterable[PageState], settings: LayerSettings) -> Self:
        """Calibrate on about `calibration_pages` held-out pages with the required signals."""
        return self

    def calibrate_on(self, model: PageStateEncoder, images: Iterable[Any]) -> Self:
        """Calibrate on held-out page images."""
        return self.calibrate(model.page_states(images, self.signals(model.layer_settings)), model.layer_settings)

    @abstractmethod
    def compress(self, page: PageState, settings: LayerSettings) -> CompressedPage:
        """Compress a page; vectors are in page order of their anchors."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"


class BudgetCompressor(Compressor):
    """A compressor that returns exactly m vectors: `ceil(ratio N)`, or `min(N, cap)`.

    Args:
        ratio: share of a page's vectors to keep, in (0, 1].
        cap: maximum vectors per page. Give either `ratio` or `cap`.

    Examples:
        >>> class FirstTokens(BudgetCompressor):
        ...     name = "first"
        ...
        ...     def reduce(self, page, m, settings):
        ...         return keep_tokens(page, torch.arange(m))
        >>> len(model.encode_documents(images[:1], FirstTokens(cap=7))[0])
        7
    """

    def __init__(self, ratio: float | None = None, *, cap: int | None = None) -> None:
        check_budget(ratio, cap)
        self.ratio, self.cap = ratio, cap

    def compress(self, page: PageState, settings: LayerSettings) -> CompressedPage:
        """Call `reduce`, unless the budget allows all vectors."""
        m = vector_budget(len(page), self.ratio, self.cap)
        return keep_all_tokens(page) if m == len(page) else self.reduce(page, m, settings)

    @abstractmethod
    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> CompressedPage:
        """Compress a page to m < N vectors."""


class BoundCompressor(Compressor):
    """A compressor bound to fixed layer settings, independent of later calibrations of the model."""

    def __init__(self, inner: Compressor, settings: LayerSettings) -> None:
        self.inner, self.settings = inner, settings

    def signals(self, settings: LayerSettings) -> Sequence[Signal]:
        """Return the signals of the bound layers."""
        return self.inner.signals(self.settings)

    def compress(self, page: PageState, settings: LayerSettings) -> CompressedPage:
        """Compress with the bound layers."""
        return self.inner.compress(page, self.settings)


def keep_all_tokens(page: PageState) -> CompressedPage:
    """Return the full index of a page."""
    positions = torch.arange(len(page), device=page.hidden.device)
    return CompressedPage(page.embeddings, positions, positions.clone(), torch.ones_like(positions, dtype=torch.float))


def keep_tokens(page: PageState, tokens: torch.Tensor) -> CompressedPage:
    """Prune a page to the vectors at positions `tokens (m,)`, in page order.

    Examples:
        >>> page = PageState(hidden=torch.eye(3), project=lambda z: z)
        >>> keep_tokens(page, torch.tensor([2, 0])).groups
        tensor([ 0, -1,  1])
    """
    tokens = tokens.sort().values
    groups = torch.full((len(page),), -1, dtype=torch.long, device=tokens.device)
    groups[tokens] = torch.arange(len(tokens), device=tokens.device)
    return CompressedPage(page.embeddings[tokens], tokens, groups, (groups >= 0).to(page.embeddings.dtype))


def required_signals(compressors: Iterable[Compressor], settings: LayerSettings) -> list[Signal]:
    """Return the distinct signals of several compressors, to encode pages once for all of them."""
    return list(dict.fromkeys(s for c in compressors for s in c.signals(settings)))


COMPRESSORS: Registry[type[Compressor]] = Registry(
    "anchorfold.compressors",
    "compressor",
    {
        "1d-pooling": "anchorfold.compressors.pooling_1d:Pooling1D",
        "1d-pooling-raw": "anchorfold.compressors.pooling_1d:RawPooling1D",
        "agc": "anchorfold.compressors.agc:AGC",
        "anchorfold": "anchorfold.compressors.anchor_fold:AnchorFold",
        "docpruner": "anchorfold.compressors.docpruner:DocPruner",
        "focus-clustering": "anchorfold.compressors.focus_clustering:FocusClustering",
        "none": "anchorfold.compressors.full_index:FullIndex",
        "random": "anchorfold.compressors.random_pruning:RandomPruning",
        "sap": "anchorfold.compressors.sap:SAP",
        "semantic-clustering": "anchorfold.compressors.semantic_clustering:SemanticClustering",
        "semantic-clustering-raw": "anchorfold.compressors.semantic_clustering:RawSemanticClustering",
        "similarity-fold": "anchorfold.compressors.similarity_fold:SimilarityFold",
        "spread-fold": "anchorfold.compressors.spread_fold:SpreadFold",
        "ward": "anchorfold.compressors.ward:Ward",
    },
    aliases={
        **dict.fromkeys(("kmeans", "clustering"), "semantic-clustering"),
        **dict.fromkeys(("pooling", "meanpooling"), "1d-pooling"),
        **dict.fromkeys(("tokenpooling", "hierarchical", "hierarchicalpooling", "agglomerative"), "ward"),
        "pruning": "docpruner",
        "randompruning": "random",
        **dict.fromkeys(("full", "fullindex"), "none"),
    },
)
C = TypeVar("C", bound=type[Compressor])


def register(cls: C) -> C:
    """Register a compressor class under its `name` in this process (class decorator).

    Installed packages use the entry point group `anchorfold.compressors` instead.

    Examples:
        >>> @register
        ... class Everything(anchorfold.FullIndex):
        ...     name = "everything"
        >>> compressor("everything")
        Everything()
        >>> COMPRESSORS.unregister("everything")
    """
    COMPRESSORS.register(cls.name, cls)
    return cls


def compressor(name: str, **options: Any) -> Compressor:
    """Create a compressor by name.

    Examples:
        >>> compressor("sap", ratio=0.2)
        SAP(ratio=0.2)
    """
    return COMPRESSORS[name](**options)


def compressor_names(*, training_free: bool = False) -> list[str]:
    """Return all names, sorted; with `training_free` without those that require a specially trained model.

    Examples:
        >>> set(compressor_names()) - set(compressor_names(training_free=True))
        {'agc'}
    """
    return [n for n in COMPRESSORS.names() if not (training_free and COMPRESSORS[n].trained)]


def compressor_title(name: str) -> str:
    """Return the display name of a compressor; the name itself if it is unknown."""
    try:
        return COMPRESSORS[name].title or name
    except AnchorFoldError:
        return name
