"""Methods and budgets to compare, by short labels such as `anchorfold@0.2` and `sap@cap128`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anchorfold.compressors import AnchorFold, Compressor, DocPruner, FullIndex, compressor, compressor_names
from anchorfold.errors import AnchorFoldError

FULL = "none@1"
RATIOS = (0.5, 0.2, 0.1, 0.05)
TRAINING_FREE = ("anchorfold", "semantic-clustering", "sap", "docpruner", "1d-pooling")

# The paper's table 1, each variant changing one choice; and one more: random anchors, which everything should beat.
VARIANTS: dict[str, dict[str, object]] = {
    "one-step": {"steps": 1},
    "random-anchors": {"anchors": "random"},
    "no-folding": {"folding": False},
    "uniform-weights": {"weights": "uniform"},
}


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
        return f"{self.name}@{f'cap{self.cap}' if self.cap is not None else f'{self.ratio:g}'}"

    def make(self) -> Compressor:
        """The compressor; DocPruner still wants its calibration."""
        if self.name == FullIndex.name:
            return FullIndex()
        if self.window is not None or self.steps is not None:
            window = None if self.window is None else (self.window[0], self.window[1])
            return AnchorFold(self.ratio, cap=self.cap, window=window, steps=self.steps)
        if self.name in VARIANTS:
            return AnchorFold(self.ratio, cap=self.cap, **VARIANTS[self.name])  # type: ignore[arg-type]
        return compressor(self.name, ratio=self.ratio) if self.cap is None else compressor(self.name, cap=self.cap)


def relative_windows(layers: int, share: float = 0.2, count: int = 9) -> list[tuple[str, tuple[int, int]]]:
    """The paper's nine windows, each a fifth of the depth, a tenth apart: (relative name, first and last layer)."""
    width = math.ceil(share * layers)
    found = []
    for i in range(count):
        first = min(math.floor(i * (1 - share) / (count - 1) * layers), layers - width)
        start = round(100 * i * (1 - share) / (count - 1))
        found.append((f"{start}-{start + round(100 * share)} %", (first, first + width - 1)))
    return found


def choose_methods(names: str, ratios: Sequence[float], caps: Sequence[int] = ()) -> list[Method]:
    """Every method under every budget, the full index first.

    Args:
        names: with commas between; `all` stands for the paper's methods, `name@0.1` and `name@cap128` for one budget.
        ratios, caps: the budgets of names without one.
    """
    known = {*compressor_names(), *VARIANTS}
    parts = [part.strip() for part in names.split(",") if part.strip()]
    chosen = {FULL: Method(FullIndex.name, 1.0)}
    for text in (t for part in parts for t in (TRAINING_FREE if part == "all" else (part,))):
        name, _, budget = text.partition("@")
        if name not in known:
            raise AnchorFoldError(f"there is no method {name!r}: choose among {', '.join(sorted(known))}.")
        if name == FullIndex.name:
            continue
        made = [Method(name, ratio=r) for r in ratios]
        made += [Method(name, cap=c) for c in caps if name != DocPruner.name]
        for method in [_with_budget(name, budget)] if budget else made:
            chosen.setdefault(method.label, method)
    return list(chosen.values())


def _with_budget(name: str, budget: str) -> Method:
    try:
        if budget.startswith("cap"):
            return Method(name, cap=int(budget.removeprefix("cap")))
        return Method(name, ratio=float(budget))
    except ValueError as error:
        raise AnchorFoldError(f"{name}@{budget} has no budget: write {name}@0.1 or {name}@cap128.") from error
