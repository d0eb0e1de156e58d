"""An encoder without weights for tests: it reads the number that is drawn on a page.

It starts in a moment, so that tests can kill the processes that run it many times.
"""

import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.backbones.encoder import ExplainedQuery
from anchorfold.compressors import FullIndex
from anchorfold.page import EncodedPage, PageState, PatchGrid
from anchorfold.storage.index_settings import IndexSettings

ROWS, COLUMNS, DIM = 6, 4, 16


def page_image(number: int) -> Image.Image:
    """Three bands whose grey levels are the digits of a number below 1,000."""
    bands = [np.full((20, 60), 10 + 25 * int(d), np.uint8) for d in f"{number:03}"]
    return Image.fromarray(np.concatenate(bands)).convert("RGB")


def read_number(image: Image.Image) -> int:
    levels = np.asarray(image.convert("L").resize((1, 3), Image.Resampling.BOX), np.float32)[:, 0]
    return int("".join(str(int(np.clip(round((v - 10) / 25), 0, 9))) for v in levels))


def number_vectors(number: int) -> np.ndarray:
    return np.random.default_rng(number).normal(size=(ROWS * COLUMNS, DIM)).astype(np.float32)


def write_pdf(path: Path, numbers: list[int]) -> Path:
    images = [page_image(n) for n in numbers]
    path.parent.mkdir(parents=True, exist_ok=True)
    images[0].save(path, "PDF", save_all=True, append_images=images[1:], resolution=72)
    return path


class Signals(dict):
    def __missing__(self, key):
        return torch.linspace(2, 1, ROWS * COLUMNS)


class NumberReader:
    """What an index needs of a model."""

    name, family, fingerprint, dim = "number-reader", "number", "number-reader-1", DIM
    page_pixels, default_batch_size = 40_000, 1
    load_options: ClassVar[dict[str, Any]] = {}
    layer_settings = LayerSettings(window=(1, 2), sap_window=(1, 2), layers=4)

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.encoded: list[int] = []

    def warn_if_causal(self):
        return None

    def encode_documents(self, images, compressor=None, batch_size=None):
        encoded_pages = []
        for image in images:
            time.sleep(self.seconds)
            number = read_number(image)
            self.encoded.append(number)
            state = PageState(
                torch.from_numpy(number_vectors(number)), lambda z: z, Signals(), PatchGrid.single(ROWS, COLUMNS)
            )
            folded = (compressor or FullIndex()).compress(state, self.layer_settings)
            encoded_pages.append(EncodedPage(folded.vectors, folded.anchors, folded.groups, folded.weights, state.grid))
        return encoded_pages

    def encode_queries(self, texts):
        return [
            torch.from_numpy(number_vectors(int(t.split()[-1]))) if t.strip() else torch.zeros(0, DIM) for t in texts
        ]

    def explain_query(self, text):
        (vectors,) = self.encode_queries([text])
        return ExplainedQuery(vectors, [text], [0] * len(vectors))


def index_settings(**changes: Any) -> IndexSettings:
    defaults: dict[str, Any] = {
        "model": NumberReader.name, "fingerprint": NumberReader.fingerprint, "dim": DIM, "method": "1d-pooling",
        "options": {"ratio": 0.25},
    }  # fmt: skip
    return IndexSettings(**{**defaults, **changes})
