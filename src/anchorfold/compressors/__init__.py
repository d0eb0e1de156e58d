"""Compressors, one file each."""

from anchorfold.compressors.agc import AGC
from anchorfold.compressors.anchor_fold import AnchorFold
from anchorfold.compressors.base import (
    COMPRESSORS,
    BudgetCompressor,
    Compressor,
    Pinned,
    compressor,
    compressor_names,
    keep,
    register,
    title_of,
    wanted_signals,
)
from anchorfold.compressors.docpruner import DocPruner
from anchorfold.compressors.focus_clustering import FocusClustering
from anchorfold.compressors.full_index import FullIndex
from anchorfold.compressors.pooling_1d import Pooling1D
from anchorfold.compressors.random_pruning import RandomPruning
from anchorfold.compressors.sap import SAP
from anchorfold.compressors.semantic_clustering import SemanticClustering
from anchorfold.compressors.similarity_fold import SimilarityFold
from anchorfold.compressors.spread_fold import SpreadFold
from anchorfold.compressors.ward import Ward

__all__ = [
    "AGC",
    "COMPRESSORS",
    "SAP",
    "AnchorFold",
    "BudgetCompressor",
    "Compressor",
    "DocPruner",
    "FocusClustering",
    "FullIndex",
    "Pinned",
    "Pooling1D",
    "RandomPruning",
    "SemanticClustering",
    "SimilarityFold",
    "SpreadFold",
    "Ward",
    "compressor",
    "compressor_names",
    "keep",
    "register",
    "title_of",
    "wanted_signals",
]
