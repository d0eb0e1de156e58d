"""Measure how concentrated the attention of a model is, and its reading accuracy, on held-out documents.

    python -m training.nano.attention_spread DATA_FOLDER nano FOLDER...

The spread of a token's attention is its perplexity over the visual tokens that it may attend to, relative to their
number: 1 is uniform attention, whose graph contains no information about content. The median over tokens and heads
is printed for each layer, averaged over pages. With --reset, query and key projections are re-initialised first, as
at the start of the run `neutral`.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import anchorfold
from anchorfold.backbones.nano.retriever import Nano
from training.nano.corpus import load_page
from training.nano.evaluate import read_page
from training.nano.stages import captured_attention, reset_attention

SEED = 5


def attention_spread(query: Tensor, key: Tensor, is_causal: bool) -> float:
    """Return the median relative perplexity of attention among the tokens of queries and keys `(H, n, d)`."""
    logits = query @ key.transpose(1, 2) * query.shape[-1] ** -0.5
    later = torch.ones(logits.shape[1:], dtype=torch.bool).triu(1)
    if is_causal:
        logits = logits.masked_fill(later, float("-inf"))
    weights = logits.softmax(-1)
    entropy = -torch.special.xlogy(weights, weights).sum(-1)
    allowed = (~later).sum(-1) if is_causal else torch.full((logits.shape[1],), logits.shape[1])
    return float((entropy.exp() / allowed).median())


@torch.no_grad()
def measure(model: Nano, paths: list[Path]) -> tuple[float, list[float]]:
    """Return reading accuracy among 5,000 words in percent, and the mean attention spread per layer."""
    model.model.config._attn_implementation_internal = "nano_capture"
    rng, registers = random.Random(SEED), model.model.config.registers
    correct: list[bool] = []
    spreads: list[list[float]] = []
    for path in paths:
        correct += [reading.correct for reading in read_page(model, *load_page(path), rng)]
        layers = (captured_attention(model.model, layer) for layer in range(len(model.model.layers)))
        is_causal = model.model.config.is_causal
        spreads.append([attention_spread(q[0, :, registers:], k[0, :, registers:], is_causal) for q, k in layers])
    return 100 * float(np.mean(correct)), np.mean(spreads, 0).tolist()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--pages", type=int, default=5)
    parser.add_argument("--reset", action="store_true", help="re-initialise query and key projections first")
    arguments = parser.parse_args()
    paths = sorted((arguments.data / "pages" / "held_out").glob("*.npz"))
    paths = random.Random(SEED).sample(paths, min(arguments.pages, len(paths)))
    for name in arguments.models:
        model = anchorfold.load(name)
        assert isinstance(model, Nano)
        if arguments.reset:
            torch.manual_seed(0)
            reset_attention(model.model, range(len(model.model.layers)))
        accuracy, spread = measure(model, paths)
        print(f"{name}: words {accuracy:.1f} %, spread per layer {' '.join(f'{s:.3f}' for s in spread)}", flush=True)


if __name__ == "__main__":
    main()
