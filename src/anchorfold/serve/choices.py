"""Which compressors the page offers for a comparison: all that can work on a page at once, ours and others'."""

from __future__ import annotations

import re
from dataclasses import dataclass

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors import COMPRESSORS, AnchorFold, Compressor, SemanticClustering

RATIOS = (0.2, 0.1, 0.05)  # of the index's own compressor; the others are offered under the last of them
RATIO = r"0\.[0-9]{0,3}[1-9]|1"


@dataclass(frozen=True)
class Choice:
    """A compressor under a ratio; None for one that takes no budget."""

    name: str
    ratio: float | None

    def __str__(self) -> str:
        return self.name if self.ratio is None else f"{self.name}:{self.ratio}"

    @classmethod
    def parse(cls, text: str) -> Choice:
        """A text that fits `method_pattern`: `anchorfold:0.05`, or `none`, which takes no budget."""
        name, _, ratio = text.partition(":")
        return cls(name, float(ratio) if ratio else None)

    def compressor(self) -> Compressor:
        """The compressor."""
        return COMPRESSORS[self.name].with_budget(self.ratio)

    @property
    def title(self) -> str:
        """As people read it."""
        title = COMPRESSORS[self.name].title or self.name
        return title if self.ratio is None else f"{title} {self.ratio}"

    @property
    def colour(self) -> str:
        """Of its caption on the page, as #rrggbb."""
        return COMPRESSORS[self.name].colour


def offered_names() -> list[str]:
    """Compressors that need nothing but the page: no training, no held-out pages."""
    return [n for n in COMPRESSORS.names() if not (COMPRESSORS[n].trained or COMPRESSORS[n].calibration_pages)]


def takes_budget(name: str) -> bool:
    """Whether a compressor can be told how many vectors to keep."""
    try:
        COMPRESSORS[name].with_budget(RATIOS[-1])
    except ValueError:
        return False
    return True


def method_pattern() -> str:
    """What a request may ask for, as a regular expression."""
    names = {name: re.escape(name) for name in offered_names()}
    budgeted = "|".join(text for name, text in names.items() if takes_budget(name))
    fixed = "|".join(text for name, text in names.items() if not takes_budget(name))
    return f"^(({budgeted}):({RATIO})|{fixed})$"


def choices(method: str, settings: LayerSettings) -> list[Choice]:
    """What the page offers for an index of this method: its own under several ratios, the others under the smallest."""
    names = offered_names()
    own = method if method in names and takes_budget(method) else AnchorFold.name
    listed = [Choice(own, ratio) for ratio in RATIOS]
    listed += [Choice(name, RATIOS[-1] if takes_budget(name) else None) for name in names if name != own]
    return [choice for choice in listed if choice.compressor().obstacle(settings) is None]


def first_choices(listed: list[Choice]) -> list[Choice]:
    """Those that a visitor sees at first: the index's own, weak and strong, and its best rival."""
    wanted = (listed[0], Choice(listed[0].name, RATIOS[-1]), Choice(SemanticClustering.name, RATIOS[-1]))
    return [choice for choice in listed if choice in wanted]
