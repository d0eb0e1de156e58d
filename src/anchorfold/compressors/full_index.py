"""No compression: the full index."""

from __future__ import annotations

from typing import Self

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.compressors.base import Compressor, keep_all_tokens
from anchorfold.core.fold import CompressedPage
from anchorfold.errors import InvalidArgumentError
from anchorfold.page import PageState


class FullIndex(Compressor):
    """Keeps all N vectors unchanged.

    Examples:
        >>> len(model.encode_documents(images[:1], FullIndex())[0])
        128
    """

    name = "none"
    title = "full index"

    @classmethod
    def with_budget(cls, ratio: float | None = None, cap: int | None = None) -> Self:
        """Create a compressor; only a ratio of 1 is accepted."""
        if cap is not None or ratio not in (None, 1):
            raise InvalidArgumentError("the full index keeps all vectors: remove the ratio or cap.")
        return cls()

    def compress(self, page: PageState, settings: LayerSettings) -> CompressedPage:
        """Return all vectors."""
        return keep_all_tokens(page)
