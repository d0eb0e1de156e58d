"""Methods and budgets to compare, by short labels such as `anchorfold@0.2` and `sap@cap128`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from anchorfold._registry import choose_from
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors import (
    COMPRESSORS,
    AnchorFold,
    Compressor,
    FullIndex,
    Pooling1D,
    SemanticClustering,
    compressor,
    compressor_names,
)
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation import paper

FULL = "none@1"
RATIOS = (0.5, 0.2, 0.1, 0.05)
ANCHORFOLD = AnchorFold.name


def variants() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the ablations that compressors declare: {name: (compressor, options)}."""
    return {
        variant: (name, dict(options))
        for name in compressor_names()
        for variant, options in vars(COMPRESSORS[name]).get("variants", {}).items()
    }


# Stronger than the paper's baselines, which store arithmetic means.
NORMALIZED_BASELINES = (SemanticClustering.name, Pooling1D.name)
SINGLE_VECTOR = f"{Pooling1D.name}@cap1"  # one mean vector per page


def paper_methods() -> list[str]:
    """Return the methods in the paper's tables, AnchorFold first."""
    names = dict.fromkeys(row["method"] for row in paper.table("benchmarks"))
    return sorted((n for n in names if n != FullIndex.name), key=lambda n: n != ANCHORFOLD)


@dataclass(frozen=True)
class Method:
    """A compressor with a budget; `window` and `steps` override the backbone's settings of AnchorFold."""

    name: str
    ratio: float | None = None
    cap: int | None = None
    window: tuple[int, int] | None = None
    steps: int | None = None

    @property
    def label(self) -> str:
        """Short name, such as `sap@0.2`."""
        return f"{self.name}@{self.budget}"

    @property
    def budget(self) -> str:
        """The budget as `0.2` or `cap128`."""
        return f"cap{self.cap}" if self.cap is not None else f"{self.ratio:g}"

    def make(self) -> Compressor:
        """Create the compressor, uncalibrated."""
        if self.name == FullIndex.name:
            return FullIndex()
        budget = {"ratio": self.ratio} if self.cap is None else {"cap": self.cap}
        if self.window is not None or self.steps is not None:
            window = None if self.window is None else (self.window[0], self.window[1])
            return compressor(ANCHORFOLD, **budget, window=window, steps=self.steps)
        name, options = variants().get(self.name, (self.name, {}))
        return compressor(name, **budget, **options)


def takes_cap(name: str) -> bool:
    """Return whether a method accepts a fixed number of vectors per page."""
    name, _ = variants().get(name, (name, {}))
    return "cap" in inspect.signature(COMPRESSORS[name]).parameters


def relative_windows(layers: int, share: float = 0.2, count: int = 9) -> list[tuple[str, tuple[int, int]]]:
    """Return the paper's nine windows, each a fifth of the depth: (relative name, first and last layer)."""
    width = math.ceil(share * layers)
    windows = []
    for i in range(count):
        first = min(math.floor(i * (1 - share) / (count - 1) * layers), layers - width)
        start = round(100 * i * (1 - share) / (count - 1))
        windows.append((f"{start}-{start + round(100 * share)} %", (first, first + width - 1)))
    return windows


def choose_methods(names: str, ratios: Sequence[float], caps: Sequence[int] = ()) -> list[Method]:
    """Parse methods and budgets; the full index comes first.

    Args:
        names: comma-separated; `all` for the paper's methods and the normalised baselines, `name@0.1` or
            `name@cap128` for one budget.
        ratios: budgets of names without a budget.
        caps: further budgets of names without a budget, in vectors per page.

    >>> [m.label for m in choose_methods("anchorfold,sap@cap9", [0.2, 0.1])]
    ['none@1', 'anchorfold@0.2', 'anchorfold@0.1', 'sap@cap9']
    """
    known = {*compressor_names(), *variants()}
    parts = [part.strip() for part in names.split(",") if part.strip()]
    chosen = {FULL: Method(FullIndex.name, 1.0)}
    everything = (*paper_methods(), *NORMALIZED_BASELINES)
    for text in (t for part in parts for t in (everything if part == "all" else (part,))):
        name, _, budget = text.partition("@")
        if name not in known:
            raise AnchorFoldError(f"there is no method {name!r}: {choose_from(name, known, COMPRESSORS.aliases)}")
        if name == FullIndex.name:
            continue
        budgets = [Method(name, ratio=r) for r in ratios]
        budgets += [Method(name, cap=c) for c in caps if takes_cap(name)]
        for method in [_with_budget(name, budget)] if budget else budgets:
            chosen.setdefault(method.label, method)
    return list(chosen.values())


def _with_budget(name: str, budget: str) -> Method:
    try:
        if budget.startswith("cap"):
            return Method(name, cap=int(budget.removeprefix("cap")))
        return Method(name, ratio=float(budget))
    except ValueError as error:
        raise AnchorFoldError(
            f"{name}@{budget} is not a method with a budget: write {name}@0.1 or {name}@cap128."
        ) from error


def unsupported_methods(methods: Iterable[Method], settings: LayerSettings) -> dict[str, str]:
    """Return why methods are unsupported by a backbone, by label."""
    reasons = {method.label: method.make().unsupported_reason(settings) for method in methods}
    return {label: reason for label, reason in reasons.items() if reason is not None}
