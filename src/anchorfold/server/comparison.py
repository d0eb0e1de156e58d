"""Compressors that the search page can compare on a page."""

from __future__ import annotations

import re
from dataclasses import dataclass

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors import COMPRESSORS, AnchorFold, Compressor, SemanticClustering
from anchorfold.evaluation.figures.style import method_colour

RATIOS = (0.2, 0.1, 0.05)  # of the compressor of the index; others are offered at the last ratio
RATIO_PATTERN = r"0\.[0-9]{0,3}[1-9]|1"


@dataclass(frozen=True)
class ComparisonMethod:
    """A compressor and its ratio; the ratio is None for compressors without a budget."""

    name: str
    ratio: float | None

    def __str__(self) -> str:
        return self.name if self.ratio is None else f"{self.name}:{self.ratio}"

    @classmethod
    def parse(cls, text: str) -> ComparisonMethod:
        """Parse a text that matches `method_pattern`, such as `anchorfold:0.05` or `none`."""
        name, _, ratio = text.partition(":")
        return cls(name, float(ratio) if ratio else None)

    def compressor(self) -> Compressor:
        """Return the compressor."""
        return COMPRESSORS[self.name].with_budget(self.ratio)

    @property
    def title(self) -> str:
        """Title for users."""
        title = COMPRESSORS[self.name].title or self.name
        return title if self.ratio is None else f"{title} {self.ratio}"

    @property
    def color(self) -> str:
        """Color of its caption, as #rrggbb."""
        return method_colour(self.name)


def comparable_names() -> list[str]:
    """Return the compressors that require neither training nor held-out pages."""
    return [n for n in COMPRESSORS.names() if not (COMPRESSORS[n].trained or COMPRESSORS[n].calibration_pages)]


def takes_budget(name: str) -> bool:
    """Return whether a compressor takes a ratio."""
    try:
        COMPRESSORS[name].with_budget(RATIOS[-1])
    except ValueError:
        return False
    return True


def method_pattern() -> str:
    """Return the regular expression of valid methods in requests."""
    names = {name: re.escape(name) for name in comparable_names()}
    budgeted = "|".join(text for name, text in names.items() if takes_budget(name))
    fixed = "|".join(text for name, text in names.items() if not takes_budget(name))
    return f"^(({budgeted}):({RATIO_PATTERN})|{fixed})$"


def comparison_methods(method: str, settings: LayerSettings) -> list[ComparisonMethod]:
    """Return the methods offered for an index: its own at several ratios, the others at the smallest ratio."""
    names = comparable_names()
    own = method if method in names and takes_budget(method) else AnchorFold.name
    methods = [ComparisonMethod(own, ratio) for ratio in RATIOS]
    methods += [ComparisonMethod(n, RATIOS[-1] if takes_budget(n) else None) for n in names if n != own]
    return [m for m in methods if m.compressor().unsupported_reason(settings) is None]


def default_methods(methods: list[ComparisonMethod]) -> list[ComparisonMethod]:
    """Return the methods that are selected at first: that of the index at two ratios, and semantic clustering."""
    smallest = RATIOS[-1]
    defaults = (
        methods[0],
        ComparisonMethod(methods[0].name, smallest),
        ComparisonMethod(SemanticClustering.name, smallest),
    )
    return [method for method in methods if method in defaults]
