"""No compression: the full index."""

from __future__ import annotations

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors.base import Compressor, keep_all, register
from anchorfold.fold import Folded
from anchorfold.page import PageState


@register
class FullIndex(Compressor):
    """All N vectors, unchanged."""

    name = "none"

    def compress(self, page: PageState, settings: LayerSettings) -> Folded:
        """Everything."""
        return keep_all(page)

    def __repr__(self) -> str:
        return "FullIndex()"
