"""Pages that carry a number in squares of black and white, and an encoder without weights that reads it.

The vectors of a page are a function of its number alone, so the expected content of an index is known from the
numbers that were painted on the pages of every file.
"""

from __future__ import annotations

import io
import time
import zlib
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.query_words import ExplainedQuery
from anchorfold.compressors import Compressor, Pooling1D
from anchorfold.page import EncodedPage, PageState, PatchGrid

COMPRESSOR = Pooling1D(ratio=0.5)
SIDE, DIM, QUERY_TOKENS = 8, 64, 8  # patches a side, dimension of vectors, vectors of a query
SQUARES, SQUARE_PIXELS = 6, 16  # squares a side: 24 bits of number, 12 bits of checksum
SETTINGS = LayerSettings(window=(1, 2), sap_window=(1, 2), layers=4)
TOLERANCE = {32: 1e-5, 16: 1e-3, 8: 1e-2}  # of a stored unit vector's components, by bits


def checksum(number: int) -> int:
    return zlib.crc32(number.to_bytes(3, "big")) & 0xFFF


def page_image(number: int) -> Image.Image:
    """An RGB image of the number, below 2^24."""
    code = number << 12 | checksum(number)
    bits = np.array([code >> i & 1 for i in range(SQUARES**2)], np.uint8).reshape(SQUARES, SQUARES)
    return Image.fromarray(np.kron(bits * 255, np.ones((SQUARE_PIXELS, SQUARE_PIXELS), np.uint8))).convert("RGB")


def read_number(image: Image.Image) -> int:
    """The number on a page; ValueError if there is none that is whole."""
    bits = np.asarray(image.convert("L").resize((SQUARES, SQUARES), Image.Resampling.BOX)) > 127
    code = sum(1 << i for i, bit in enumerate(bits.reshape(-1).tolist()) if bit)
    number = code >> 12
    if code & 0xFFF != checksum(number):
        raise ValueError("no number can be read on this page")
    return number


def document_bytes(suffix: str, numbers: Sequence[int]) -> bytes:
    """A file of that kind with a page for each number."""
    images = [page_image(n) for n in numbers]
    buffer = io.BytesIO()
    if suffix == ".pdf":
        images[0].save(buffer, "PDF", save_all=True, append_images=images[1:], resolution=72)
    elif suffix == ".tiff":
        images[0].save(buffer, "TIFF", save_all=True, append_images=images[1:])
    else:
        images[0].save(buffer, {".png": "PNG", ".jpg": "JPEG", ".webp": "WEBP"}[suffix])
    return buffer.getvalue()


def full_vectors(number: int) -> Tensor:
    """`(64, d)` unit vectors of a page before compression."""
    vectors = np.random.default_rng(number).normal(size=(SIDE * SIDE, DIM)).astype(np.float32)
    return torch.nn.functional.normalize(torch.from_numpy(vectors), dim=1)


def encode(number: int, method: Compressor) -> EncodedPage:
    state = PageState(full_vectors(number), lambda z: z, {}, PatchGrid.single(SIDE, SIDE))
    folded = method.compress(state, SETTINGS)
    return EncodedPage(folded.vectors, folded.anchors, folded.groups, folded.weights, state.grid)


@lru_cache(10_000)
def expected_page(number: int) -> EncodedPage:
    """What an index must hold of a page."""
    return encode(number, COMPRESSOR)


def query_vectors(number: int) -> Tensor:
    """`(8, d)` vectors of the query that asks for a page."""
    return full_vectors(number)[:: SIDE * SIDE // QUERY_TOKENS]


@lru_cache(100_000)
def expected_score(query: int, number: int) -> float:
    """MaxSim of the query for one page with another page."""
    return float((query_vectors(query) @ expected_page(number).vectors.T).amax(1).sum())


def same_vectors(stored: Tensor, number: int, bits: int) -> bool:
    """Whether stored vectors `(m, d)` are those of a page, up to the rounding of their bits."""
    expected = expected_page(number).vectors
    return stored.shape == expected.shape and bool((stored - expected).abs().max() <= TOLERANCE[bits])


class MarkReader:
    """What an index needs of a model. `seconds` a page make it slow enough to be disturbed."""

    name, family, fingerprint, dim = "mark-reader", "mark", "mark-reader-1", DIM
    page_pixels, default_batch = 40_000, 1
    settings = SETTINGS
    load_options: ClassVar[dict[str, Any]] = {}

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def warn_if_causal(self) -> None:
        """It has no attention."""

    def encode_pages(
        self, images: Iterable[Any], compressor: Compressor | None = None, batch_size: int | None = None
    ) -> list[EncodedPage]:
        pages = []
        for image in images:
            time.sleep(self.seconds)
            pages.append(encode(read_number(image), compressor or COMPRESSOR))
        return pages

    def encode_queries(self, texts: Sequence[str]) -> list[Tensor]:
        """The number is the last word of a query."""
        return [query_vectors(int(text.split()[-1])) for text in texts]

    def explain_query(self, text: str) -> ExplainedQuery:
        """A query is one piece of evidence."""
        (vectors,) = self.encode_queries([text])
        return ExplainedQuery(vectors, [text], [0] * len(vectors))
