"""Query sides that start without their whole model: a search need not wait for what reads pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from anchorfold._registry import Registry


class LightQueryEncoder(Protocol):
    """A query encoder that needs neither torch nor the rest of its model."""

    @property
    def fingerprint(self) -> str:
        """That of the whole model."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> list[np.ndarray]:
        """For each query its `(tokens, dim)` vectors in float32."""
        ...


QUERY_ENCODERS: Registry[type[LightQueryEncoder]] = Registry(
    "anchorfold.query_encoders", "query encoder", {"nano": "anchorfold.backbones.nano.query_side:QuerySide"}
)


def load_query_encoder(model: str) -> LightQueryEncoder | None:
    """The light query side of a model that `anchorfold.load` knows by this name; None if it has none."""
    return QUERY_ENCODERS[model]() if model in QUERY_ENCODERS else None
