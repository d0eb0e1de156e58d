"""AnchorFold: visual document search, 5 to 20 times smaller, without losing the answers."""

from anchorfold.backbones import CausalBackboneWarning, Retriever, load
from anchorfold.backbones.multivector import attach, detach
from anchorfold.compressors import (
    SAP,
    AnchorFold,
    BudgetCompressor,
    Compressor,
    DocPruner,
    FullIndex,
    Pooling1D,
    RandomPruning,
    SemanticClustering,
    Ward,
    compressor,
    compressor_names,
    register,
)
from anchorfold.page import EncodedPage, PageState, PatchGrid
from anchorfold.scoring import maxsim
from anchorfold.settings import Settings, UncalibratedWarning

__version__ = "0.1.0"

__all__ = [
    "SAP",
    "AnchorFold",
    "BudgetCompressor",
    "CausalBackboneWarning",
    "Compressor",
    "DocPruner",
    "EncodedPage",
    "FullIndex",
    "PageState",
    "PatchGrid",
    "Pooling1D",
    "RandomPruning",
    "Retriever",
    "SemanticClustering",
    "Settings",
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
