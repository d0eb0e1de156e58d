"""Storage estimates: bytes on disk and in memory per page, by model, ratio, bits and store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from anchorfold.core.budget import vector_budget
from anchorfold.databases.qdrant_limits import QDRANT_MAX_VALUES
from anchorfold.errors import InvalidArgumentError
from anchorfold.quantization.codec import Coding

QUANTIZATION_BITS = {"scalar": 8, "binary": 1, "turbo4": 4, "turbo2": 2, "turbo1": 1}  # per vector component
EMBEDDED_PAGE_BYTES = 82  # database and checksums per page, measured in docs/reference/storage.md
POSTGRES_ROW_BYTES = 24 + 4  # tuple header and item pointer
POSTGRES_ARRAY_BYTES = 24  # header of an array
POSTGRES_VECTOR_BYTES = 8  # header of a halfvec


@dataclass(frozen=True)
class StorageEstimate:
    """Bytes of all pages in a store, without text, thumbnails and payloads.

    Attributes:
        store: name of the store and of its vector format.
        vectors: vectors per page.
        disk: bytes on disk.
        memory: bytes that an exact search reads repeatedly and that should fit into memory.
        problem: why the store cannot hold such pages; None if it can.
    """

    store: str
    vectors: int
    disk: int
    memory: int
    problem: str | None = None


def estimate_storage(
    pages: int, tokens: int, dim: int, *, ratio: float | None = None, cap: int | None = None, bits: int = 16
) -> Iterator[StorageEstimate]:
    """Yield the size of an index in each store.

    Args:
        pages: number of pages.
        tokens: visual tokens per page.
        dim: dimension of the vectors.
        ratio: share of the vectors that is kept.
        cap: maximum vectors per page, instead of `ratio`.
        bits: bits per vector component in the embedded index.

    Examples:
        >>> next(estimate_storage(1_000_000, 1024, 128, ratio=0.1, bits=4))
        StorageEstimate(store='AnchorFold, 4 bits', vectors=103, disk=6880000000, memory=6798000000, problem=None)
    """
    if pages < 1 or tokens < 1 or dim < 1:
        raise InvalidArgumentError(f"pages, tokens and dim must be at least 1, got {pages}, {tokens} and {dim}.")
    vectors = vector_budget(tokens, ratio, cap)
    codes = vectors * Coding(dim, bits).vector_bytes
    yield StorageEstimate(
        f"AnchorFold, {bits} bits", vectors, pages * (codes + EMBEDDED_PAGE_BYTES), pages * codes
    )  # fmt: skip
    half = vectors * dim * 2
    too_large = "more than Qdrant stores in one point" if vectors * dim >= QDRANT_MAX_VALUES else None
    yield StorageEstimate("Qdrant, float16", vectors, pages * half, pages * half, too_large)
    for name in ("scalar", "binary"):
        quantized = vectors * dim * QUANTIZATION_BITS[name] // 8
        yield StorageEstimate(
            f"Qdrant, float16 and {name}", vectors, pages * (half + quantized), pages * quantized, too_large
        )
    array = POSTGRES_ROW_BYTES + POSTGRES_ARRAY_BYTES + vectors * (dim * 2 + POSTGRES_VECTOR_BYTES)
    yield StorageEstimate("PostgreSQL, halfvec[]", vectors, pages * array, pages * array)
