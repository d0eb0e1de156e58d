"""Encoder of indexes that were created from existing vectors of an unknown model: it cannot encode anything."""

from __future__ import annotations

from typing import Any, NoReturn

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.checkpoint import Backbone
from anchorfold.errors import AnchorFoldError

NAME = "given-vectors"


def unknown_model(*_: Any, **__: Any) -> NoReturn:
    """Raise AnchorFoldError with the operations that need no model."""
    raise AnchorFoldError(
        "this index was created from existing vectors without a model name: search it by vectors "
        "(Index.search_vectors), or compress them again with `anchorfold compress ... --model NAME`."
    )


class GivenVectors:
    """Placeholder `Encoder` for existing vectors of dimension `dim`."""

    name = NAME
    load_options: dict[str, Any] = {}  # noqa: RUF012
    layer_settings = LayerSettings(window=(0, 0), sap_window=(0, 0), layers=1, source="given")
    page_pixels, default_batch_size = 1, 1
    encode_queries = encode_documents = explain_query = unknown_model

    def __init__(self, dim: int) -> None:
        self.dim, self.fingerprint = dim, f"{NAME}-{dim}"

    def warn_if_causal(self) -> None:
        """Do nothing: no attention is read."""


BACKBONE = Backbone(load=unknown_model)
