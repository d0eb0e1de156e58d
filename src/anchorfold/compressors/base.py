"""The contract of a compressor, and the register that finds one by name."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch

from anchorfold._registry import Registry
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.attention.signals import Signal
from anchorfold.budget import check_budget, vector_budget
from anchorfold.errors import AnchorFoldError
from anchorfold.fold import Folded
from anchorfold.page import PageState


class ReadsPages(Protocol):
    """What `Compressor.calibrate_on` needs of a model."""

    settings: LayerSettings

    def page_states(self, images: Iterable[Any], signals: Iterable[Signal] = ()) -> Iterable[PageState]:
        """Pages with what their attention says."""
        ...


class Compressor(ABC):
    """Turns a page's N vectors into fewer.

    A subclass has a `name` and implements `compress`. If it needs attention, it says so in `signals`, and finds the
    values in `page.signals`. It must depend on nothing but the page: batches and order never change a result. What its
    constructor takes are attributes of the same name, so that an index can store them and make it again.

    >>> class Middle(Compressor):
    ...     name = "middle"
    ...
    ...     def compress(self, page, settings):
    ...         return keep(page, torch.tensor([len(page) // 2]))
    >>> len(model.encode_pages(images[:1], Middle())[0])
    1
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""  # as people read it; the name if empty
    colour: ClassVar[str] = "#777777"  # in figures and on the search page
    marker: ClassVar[str] = "."  # matplotlib's, for figures in grey
    trained: ClassVar[bool] = False  # needs a model that was trained for it
    calibration_pages: ClassVar[int] = 0  # held-out pages that `calibrate` wants before the first page
    # Options under names of their own, for evaluations; a subclass does not inherit them.
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    @classmethod
    def with_budget(cls, ratio: float | None = None, cap: int | None = None) -> Self:
        """One that keeps a share of each page's vectors, or at most so many."""
        return cls(**({"ratio": ratio} if cap is None else {"cap": cap}))

    @property
    def options(self) -> dict[str, Any]:
        """What the constructor was given beyond its defaults: `compressor(c.name, **c.options)` makes the same."""
        parameters = inspect.signature(type(self).__init__).parameters.values()
        named = [p for p in parameters if p.name != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        return {p.name: getattr(self, p.name) for p in named if getattr(self, p.name) != p.default}

    @property
    def ready(self) -> bool:
        """Whether it can compress a page: False while it waits for `calibrate`."""
        return True

    def signals(self, settings: LayerSettings) -> Sequence[Signal]:
        """What the attention tap should collect for this compressor on this backbone."""
        return ()

    def obstacle(self, settings: LayerSettings) -> str | None:
        """Why it cannot work on a backbone, in a sentence; None if it can."""
        return None

    def calibrate(self, pages: Iterable[PageState], settings: LayerSettings) -> Self:
        """Prepare it on held-out pages, about `calibration_pages`, that carry its signals."""
        return self

    def calibrate_on(self, model: ReadsPages, images: Iterable[Any]) -> Self:
        """As `calibrate`, from page images."""
        return self.calibrate(model.page_states(images, self.signals(model.settings)), model.settings)

    @abstractmethod
    def compress(self, page: PageState, settings: LayerSettings) -> Folded:
        """The page as fewer vectors, in page order, with their anchors and groups."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"


class BudgetCompressor(Compressor):
    """A compressor that returns exactly m vectors: `ceil(ratio N)`, or `min(N, cap)`.

    >>> class FirstTokens(BudgetCompressor):
    ...     name = "first"
    ...
    ...     def reduce(self, page, m, settings):
    ...         return keep(page, torch.arange(m))
    >>> len(model.encode_pages(images[:1], FirstTokens(cap=7))[0])
    7
    """

    def __init__(self, ratio: float | None = None, *, cap: int | None = None) -> None:
        check_budget(ratio, cap)
        self.ratio, self.cap = ratio, cap

    def budget(self, page: PageState) -> int:
        """m for this page."""
        return vector_budget(len(page), self.ratio, self.cap)

    def compress(self, page: PageState, settings: LayerSettings) -> Folded:
        """The whole page if the budget allows it, else what `reduce` makes of it."""
        m = self.budget(page)
        return keep_all(page) if m == len(page) else self.reduce(page, m, settings)

    @abstractmethod
    def reduce(self, page: PageState, m: int, settings: LayerSettings) -> Folded:
        """The page as m < N vectors."""


class Pinned(Compressor):
    """A compressor that listens to the same layers whatever a later calibration says."""

    def __init__(self, inner: Compressor, settings: LayerSettings) -> None:
        self.inner, self.settings = inner, settings

    def signals(self, settings: LayerSettings) -> Sequence[Signal]:
        """Those of the pinned layers."""
        return self.inner.signals(self.settings)

    def compress(self, page: PageState, settings: LayerSettings) -> Folded:
        """As the compressor inside, under the pinned layers."""
        return self.inner.compress(page, self.settings)


def keep_all(page: PageState) -> Folded:
    """The full index."""
    every = torch.arange(len(page), device=page.hidden.device)
    return Folded(page.embeddings, every, every.clone(), torch.ones(len(page), device=page.hidden.device))


def keep(page: PageState, tokens: torch.Tensor) -> Folded:
    """A pruned index: the vectors at `tokens (m,)` unchanged, in page order.

    >>> page = PageState(hidden=torch.eye(3), project=lambda z: z)
    >>> keep(page, torch.tensor([2, 0])).groups
    tensor([ 0, -1,  1])
    """
    tokens = tokens.sort().values
    groups = torch.full((len(page),), -1, dtype=torch.long, device=tokens.device)
    groups[tokens] = torch.arange(len(tokens), device=tokens.device)
    return Folded(page.embeddings[tokens], tokens, groups, (groups >= 0).to(page.embeddings.dtype))


def wanted_signals(compressors: Iterable[Compressor], settings: LayerSettings) -> list[Signal]:
    """What the tap must collect for all of them, each once: one encoding pass then serves every compressor."""
    return list(dict.fromkeys(s for c in compressors for s in c.signals(settings)))


OURS = {
    "agc": "agc:AGC",
    "anchorfold": "anchor_fold:AnchorFold",
    "docpruner": "docpruner:DocPruner",
    "focus-clustering": "focus_clustering:FocusClustering",
    "none": "full_index:FullIndex",
    "1d-pooling": "pooling_1d:Pooling1D",
    "random": "random_pruning:RandomPruning",
    "sap": "sap:SAP",
    "semantic-clustering": "semantic_clustering:SemanticClustering",
    "similarity-fold": "similarity_fold:SimilarityFold",
    "spread-fold": "spread_fold:SpreadFold",
    "ward": "ward:Ward",
}
ALIASES = {
    "kmeans": "semantic-clustering",
    "clustering": "semantic-clustering",
    "pooling": "1d-pooling",
    "meanpooling": "1d-pooling",
    "tokenpooling": "ward",
    "hierarchical": "ward",
    "hierarchicalpooling": "ward",
    "agglomerative": "ward",
    "pruning": "docpruner",
    "randompruning": "random",
    "full": "none",
    "fullindex": "none",
}
COMPRESSORS: Registry[type[Compressor]] = Registry(
    "anchorfold.compressors",
    "compressor",
    {name: f"anchorfold.compressors.{where}" for name, where in OURS.items()},
    ALIASES,
)
C = TypeVar("C", bound=type[Compressor])


def register(cls: C) -> C:
    """Class decorator: make a compressor known by its `name` in this process.

    A package that offers one names it in the entry point group `anchorfold.compressors` instead.

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
    """A compressor by name.

    >>> compressor("sap", ratio=0.2)
    SAP(ratio=0.2)
    """
    return COMPRESSORS[name](**options)


def compressor_names(*, training_free: bool = False) -> list[str]:
    """All names, sorted; on demand only of those that any model can be compressed with.

    >>> set(compressor_names()) - set(compressor_names(training_free=True))
    {'agc'}
    """
    return [n for n in COMPRESSORS.names() if not (training_free and COMPRESSORS[n].trained)]


def title_of(name: str) -> str:
    """A compressor's name as people read it."""
    try:
        return COMPRESSORS[name].title or name
    except AnchorFoldError:
        return name
