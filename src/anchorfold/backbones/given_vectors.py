"""The model of an index that was made of vectors which somebody had: none, and it says so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.checkpoint import Backbone, Checkpoint
from anchorfold.errors import AnchorFoldError

NAME = "given-vectors"


class GivenVectors:
    """Stands where an index wants a `PageEncoder`, for vectors of dimension `dim`; it can encode nothing."""

    name = NAME
    load_options: dict[str, Any] = {}  # noqa: RUF012
    settings = LayerSettings(window=(0, 0), sap_window=(0, 0), layers=1, source="given")
    page_pixels, default_batch = 1, 1

    def __init__(self, dim: int) -> None:
        self.dim, self.fingerprint = dim, f"{NAME}-{dim}"

    def encode_queries(self, texts: Sequence[str]) -> NoReturn:
        """Only vectors can be searched for."""
        unknown_model()

    def encode_pages(self, images: Iterable[Any], compressor: Any = None, batch_size: int | None = None) -> NoReturn:
        """Only vectors can be added."""
        unknown_model()

    def explain_query(self, text: str) -> NoReturn:
        """There are no words to explain."""
        unknown_model()

    def warn_if_causal(self) -> None:
        """Nothing listens to attention."""


def unknown_model() -> NoReturn:
    """One sentence on what can be done without a model."""
    raise AnchorFoldError(
        "this index was made of vectors, and nobody said which model encoded them: search it by vectors "
        "(Index.search_vectors), or compress them again with `anchorfold compress ... --model NAME`."
    )


def _load(checkpoint: Checkpoint) -> NoReturn:
    unknown_model()


BACKBONE = Backbone(load=_load)
