"""Methods and budgets to compare, by short labels such as `anchorfold@0.2` and `sap@cap128`."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from anchorfold._registry import choose_from
from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors import COMPRESSORS, AnchorFold, Compressor, FullIndex, compressor, compressor_names
from anchorfold.errors import AnchorFoldError
from anchorfold.evaluation import paper

FULL = "none@1"
RATIOS = (0.5, 0.2, 0.1, 0.05)
OURS = AnchorFold.name


def variants() -> dict[str, tuple[str, dict[str, Any]]]:
    """Ablations that compressors declare of themselves: their name to the compressor's name and its options."""
    return {
        variant: (name, dict(options))
        for name in compressor_names()
        for variant, options in vars(COMPRESSORS[name]).get("variants", {}).items()
    }


def paper_methods() -> list[str]:
    """What the paper's tables compare, its own method first."""
    names = dict.fromkeys(row["method"] for row in paper.table("benchmarks"))
    return sorted((n for n in names if n != FullIndex.name), key=lambda n: n != OURS)


@dataclass(frozen=True)
class Method:
    """A compressor under a budget. `window` and `steps` are AnchorFold's, if they differ from the backbone's."""

    name: str
    ratio: float | None = None
    cap: int | None = None
    window: tuple[int, int] | None = None
    steps: int | None = None

    @property
    def label(self) -> str:
        """Its short name."""
        return f"{self.name}@{self.budget}"

    @property
    def budget(self) -> str:
        """`0.2`, or `cap128`."""
        return f"cap{self.cap}" if self.cap is not None else f"{self.ratio:g}"

    def make(self) -> Compressor:
        """The compressor; one that wants held-out pages still has to see them."""
        if self.name == FullIndex.name:
            return FullIndex()
        budget = {"ratio": self.ratio} if self.cap is None else {"cap": self.cap}
        if self.window is not None or self.steps is not None:
            window = None if self.window is None else (self.window[0], self.window[1])
            return compressor(OURS, **budget, window=window, steps=self.steps)
        name, options = variants().get(self.name, (self.name, {}))
        return compressor(name, **budget, **options)


def takes_cap(name: str) -> bool:
    """Whether a method can be held to a fixed number of vectors a page."""
    name, _ = variants().get(name, (name, {}))
    return "cap" in inspect.signature(COMPRESSORS[name]).parameters


def relative_windows(layers: int, share: float = 0.2, count: int = 9) -> list[tuple[str, tuple[int, int]]]:
    """The paper's nine windows, each a fifth of the depth, a tenth apart: (relative name, first and last layer)."""
    width = math.ceil(share * layers)
    windows = []
    for i in range(count):
        first = min(math.floor(i * (1 - share) / (count - 1) * layers), layers - width)
        start = round(100 * i * (1 - share) / (count - 1))
        windows.append((f"{start}-{start + round(100 * share)} %", (first, first + width - 1)))
    return windows


def choose_methods(names: str, ratios: Sequence[float], caps: Sequence[int] = ()) -> list[Method]:
    """Every method under every budget, the full index first.

    Args:
        names: with commas between; `all` stands for the paper's methods, `name@0.1` and `name@cap128` for one budget.
        ratios: budgets of names without one.
        caps: further budgets of names without one, in vectors per page.

    >>> [m.label for m in choose_methods("anchorfold,sap@cap9", [0.2, 0.1])]
    ['none@1', 'anchorfold@0.2', 'anchorfold@0.1', 'sap@cap9']
    """
    known = {*compressor_names(), *variants()}
    parts = [part.strip() for part in names.split(",") if part.strip()]
    chosen = {FULL: Method(FullIndex.name, 1.0)}
    for text in (t for part in parts for t in (paper_methods() if part == "all" else (part,))):
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
        raise AnchorFoldError(f"{name}@{budget} has no budget: write {name}@0.1 or {name}@cap128.") from error


def obstacles(methods: Iterable[Method], settings: LayerSettings) -> dict[str, str]:
    """Why some methods cannot work on a backbone: their labels to a sentence each."""
    reasons = {method.label: method.make().obstacle(settings) for method in methods}
    return {label: reason for label, reason in reasons.items() if reason is not None}
