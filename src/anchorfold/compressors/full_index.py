"""No compression: the full index."""

from __future__ import annotations

from typing import Self

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors.base import Compressor, keep_all
from anchorfold.fold import Folded
from anchorfold.page import PageState


class FullIndex(Compressor):
    """All N vectors, unchanged.

    >>> len(model.encode_pages(images[:1], FullIndex())[0])
    128
    """

    name = "none"
    title, colour, marker = "full index", "#000000", "*"

    @classmethod
    def with_budget(cls, ratio: float | None = None, cap: int | None = None) -> Self:
        """Only a budget that keeps everything fits."""
        if cap is not None or ratio not in (None, 1):
            raise ValueError("the full index keeps all vectors: it takes no ratio and no cap.")
        return cls()

    def compress(self, page: PageState, settings: LayerSettings) -> Folded:
        """Everything."""
        return keep_all(page)
