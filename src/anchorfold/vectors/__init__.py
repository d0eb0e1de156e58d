"""Compression of existing multi-vectors: from Python, or streamed from a source into an index or an export."""

from anchorfold.vectors.compression import compress_hidden_states, compress_vectors, needs_attention
from anchorfold.vectors.compression_run import CompressionReport, compress_source
from anchorfold.vectors.vector_source import SOURCES, FieldNames, VectorPage, VectorSource, open_source

__all__ = [
    "SOURCES",
    "CompressionReport",
    "FieldNames",
    "VectorPage",
    "VectorSource",
    "compress_hidden_states",
    "compress_source",
    "compress_vectors",
    "needs_attention",
    "open_source",
]
