"""Vectors that one already has: compressed in Python, or streamed from where they are into an index or an export."""

from anchorfold.vectors.given import compress, compress_vectors, needs_attention
from anchorfold.vectors.run import CompressReport, compress_source
from anchorfold.vectors.source import SOURCES, Fields, VectorPage, VectorSource, open_source

__all__ = [
    "SOURCES",
    "CompressReport",
    "Fields",
    "VectorPage",
    "VectorSource",
    "compress",
    "compress_source",
    "compress_vectors",
    "needs_attention",
    "open_source",
]
