"""AnchorFold: visual document search, 5 to 20 times smaller, without losing the answers."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anchorfold.backbones import CausalBackboneWarning, Retriever, load
    from anchorfold.backbones.multivector import attach, detach
    from anchorfold.compressors import (
        AGC,
        SAP,
        AnchorFold,
        BudgetCompressor,
        Compressor,
        DocPruner,
        FocusClustering,
        FullIndex,
        Pooling1D,
        RandomPruning,
        SemanticClustering,
        SpreadFold,
        Ward,
        compressor,
        compressor_names,
        register,
    )
    from anchorfold.index import Index
    from anchorfold.page import EncodedPage, PageState, PatchGrid
    from anchorfold.scoring import maxsim
    from anchorfold.settings import Settings, UncalibratedWarning

__version__ = "0.1.0"

__all__ = [
    "AGC",
    "SAP",
    "AnchorFold",
    "BudgetCompressor",
    "CausalBackboneWarning",
    "Compressor",
    "DocPruner",
    "EncodedPage",
    "FocusClustering",
    "FullIndex",
    "Index",
    "PageState",
    "PatchGrid",
    "Pooling1D",
    "RandomPruning",
    "Retriever",
    "SemanticClustering",
    "Settings",
    "SpreadFold",
    "UncalibratedWarning",
    "Ward",
    "attach",
    "compressor",
    "compressor_names",
    "detach",
    "load",
    "maxsim",
    "register",
]

# Names are looked up when first used: the command line and the renderer start without waiting for torch.
_HOMES = {
    "anchorfold.backbones": ("CausalBackboneWarning", "Retriever", "load"),
    "anchorfold.backbones.multivector": ("attach", "detach"),
    "anchorfold.index": ("Index",),
    "anchorfold.page": ("EncodedPage", "PageState", "PatchGrid"),
    "anchorfold.scoring": ("maxsim",),
    "anchorfold.settings": ("Settings", "UncalibratedWarning"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
            return import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME.get(name, "anchorfold.compressors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
