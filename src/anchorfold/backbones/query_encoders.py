"""Query sides that start without their whole model: a search need not wait for what reads pages."""

from __future__ import annotations

from anchorfold._registry import Registry
from anchorfold.backbones.encoder import QueryEncoder

QUERY_ENCODERS: Registry[type[QueryEncoder]] = Registry(
    "anchorfold.query_encoders", "query encoder", {"nano": "anchorfold.backbones.nano.query_side:QuerySide"}
)


def load_query_encoder(model: str) -> QueryEncoder | None:
    """The light query side of a model that `anchorfold.load` knows by this name; None if it has none."""
    return QUERY_ENCODERS[model]() if model in QUERY_ENCODERS else None
