"""Compressors, one file each."""

from anchorfold.compressors.agc import AGC as AGC
from anchorfold.compressors.anchor_fold import AnchorFold as AnchorFold
from anchorfold.compressors.base import COMPRESSORS as COMPRESSORS
from anchorfold.compressors.base import BoundCompressor as BoundCompressor
from anchorfold.compressors.base import BudgetCompressor as BudgetCompressor
from anchorfold.compressors.base import Compressor as Compressor
from anchorfold.compressors.base import compressor as compressor
from anchorfold.compressors.base import compressor_names as compressor_names
from anchorfold.compressors.base import compressor_title as compressor_title
from anchorfold.compressors.base import keep_tokens as keep_tokens
from anchorfold.compressors.base import register as register
from anchorfold.compressors.base import required_signals as required_signals
from anchorfold.compressors.docpruner import DocPruner as DocPruner
from anchorfold.compressors.focus_clustering import FocusClustering as FocusClustering
from anchorfold.compressors.full_index import FullIndex as FullIndex
from anchorfold.compressors.pooling_1d import Pooling1D as Pooling1D
from anchorfold.compressors.pooling_1d import RawPooling1D as RawPooling1D
from anchorfold.compressors.random_pruning import RandomPruning as RandomPruning
from anchorfold.compressors.sap import SAP as SAP
from anchorfold.compressors.semantic_clustering import RawSemanticClustering as RawSemanticClustering
from anchorfold.compressors.semantic_clustering import SemanticClustering as SemanticClustering
from anchorfold.compressors.similarity_fold import SimilarityFold as SimilarityFold
from anchorfold.compressors.spread_fold import SpreadFold as SpreadFold
from anchorfold.compressors.ward import Ward as Ward
