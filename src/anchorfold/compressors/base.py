"""The contract of a compressor, and the register that finds one by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

import torch

from anchorfold.budget import check_budget, vector_budget
from anchorfold.fold import Folded
from anchorfold.page import PageState
from anchorfold.settings import Settings
from anchorfold.signals import Signal


class Compressor(ABC):
    """Turns a page's N vectors into fewer.

    A subclass implements `compress`. If it needs attention, it says so in `signals`, and finds the values in
    `page.signals`. It must depend on nothing but the page: batches and order never change a result.
    """

    name: ClassVar[str]

    def signals(self, settings: Settings) -> Sequence[Signal]:
        """What the attention tap should collect for this compressor on this backbone."""
        return ()

    @abstractmethod
    def compress(self, page: PageState, settings: Settings) -> Folded:
        """The page as fewer vectors, in page order, with their anchors and groups."""


class BudgetCompressor(Compressor):
    """A compressor that returns exactly m vectors: `ceil(ratio N)`, or `min(N, cap)`."""

    def __init__(self, ratio: float | None = None, *, cap: int | None = None) -> None:
        check_budget(ratio, cap)
        self.ratio, self.cap = ratio, cap

    def budget(self, page: PageState) -> int:
        """m for this page."""
        return vector_budget(len(page), self.ratio, self.cap)

    def compress(self, page: PageState, settings: Settings) -> Folded:
        """The whole page if the budget allows it, else what `reduce` makes of it."""
        m = self.budget(page)
        return keep_all(page) if m == len(page) else self.reduce(page, m, settings)

    @abstractmethod
    def reduce(self, page: PageState, m: int, settings: Settings) -> Folded:
        """The page as m < N vectors."""

    def __repr__(self) -> str:
        budget = f"ratio={self.ratio}" if self.cap is None else f"cap={self.cap}"
        return f"{type(self).__name__}({budget})"


class Pinned(Compressor):
    """A compressor that listens to the same layers whatever a later calibration says."""

    def __init__(self, inner: Compressor, settings: Settings) -> None:
        self.inner, self.settings = inner, settings

    def signals(self, settings: Settings) -> Sequence[Signal]:
        """Those of the pinned layers."""
        return self.inner.signals(self.settings)

    def compress(self, page: PageState, settings: Settings) -> Folded:
        """As the compressor inside, under the pinned layers."""
        return self.inner.compress(page, self.settings)


def keep_all(page: PageState) -> Folded:
    """The full index."""
    every = torch.arange(len(page), device=page.hidden.device)
    return Folded(page.embeddings, every, every.clone(), torch.ones(len(page), device=page.hidden.device))


def keep(page: PageState, kept: torch.Tensor) -> Folded:
    """A pruned index: the vectors at `kept (m,)` unchanged, in page order."""
    kept = kept.sort().values
    groups = torch.full((len(page),), -1, dtype=torch.long, device=kept.device)
    groups[kept] = torch.arange(len(kept), device=kept.device)
    return Folded(page.embeddings[kept], kept, groups, (groups >= 0).to(page.embeddings.dtype))


def wanted_signals(compressors: Iterable[Compressor], settings: Settings) -> list[Signal]:
    """What the tap must collect for all of them, each once: one encoding pass then serves every compressor."""
    return list(dict.fromkeys(s for c in compressors for s in c.signals(settings)))


_REGISTER: dict[str, Callable[..., Compressor]] = {}
C = TypeVar("C", bound=type[Compressor])


def register(cls: C) -> C:
    """Class decorator: make a compressor known by its `name`."""
    if cls.name in _REGISTER:
        raise ValueError(f"a compressor called {cls.name!r} is registered already.")
    _REGISTER[cls.name] = cls
    return cls


def compressor(name: str, **options: Any) -> Compressor:
    """A compressor by name: `compressor("sap", ratio=0.2)`."""
    if name not in _REGISTER:
        raise ValueError(f"there is no compressor called {name!r}: choose one of {', '.join(sorted(_REGISTER))}.")
    return _REGISTER[name](**options)


def compressor_names() -> list[str]:
    """All registered names, sorted."""
    return sorted(_REGISTER)
