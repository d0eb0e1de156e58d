"""Host memory of `calibrate` at the shapes of a Nemotron page: nine tiles, 2,304 states of 3,072 dimensions.

    python -m benchmarks.calibration_memory --pages 4

Pages are random states in bfloat16 instead of a model's; layers and depths are few, because each costs a fold and none
costs memory beyond one value per token. Prints the peak resident memory above that before the first page.
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from PIL import Image

from anchorfold.attention.layer_settings import LayerSettings
from anchorfold.evaluation.calibration import calibrate
from anchorfold.page import PageState

TOKENS, DIMENSIONS, LAYERS = 2_304, 3_072, 2


def random_states(images: Any, signals: Any) -> Iterator[PageState]:
    for number, _ in enumerate(images):
        torch.manual_seed(number)
        hidden = torch.randn(TOKENS, DIMENSIONS).bfloat16()
        yield PageState(hidden, lambda z: z, {signal: torch.rand(TOKENS) for signal in signals})


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=4)
    pages = parser.parse_args().pages
    model: Any = SimpleNamespace(
        layer_settings=LayerSettings((0, 1), (0, 1), LAYERS), attention_layers=[None] * LAYERS, project=lambda z: z,
        page_states=random_states, encode_queries=lambda texts: [torch.randn(20, DIMENSIONS)],
    )  # fmt: skip
    before = peak_megabytes()
    calibrate(model, [("query", Image.new("RGB", (1, 1)))] * pages, depths=(2,))
    print(f"{pages} pages: {peak_megabytes() - before:,.0f} MB above {before:,.0f} MB")


if __name__ == "__main__":
    main()
