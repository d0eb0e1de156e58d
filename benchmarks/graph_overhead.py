"""Overhead of AnchorFold with every visual graph, at the layer sizes of the three backbones of the paper.

    python -m benchmarks.graph_overhead                          # bidirectional layers
    python -m benchmarks.graph_overhead --causal --only colqwen2.5

No checkpoint is needed: time does not depend on the weights. One language layer of the original width is created, its
queries and keys are captured once, and the computation of each graph is timed on them, interleaved with encoding, in
processor time of one thread, which other processes disturb least. Both are extrapolated to the full depth with the
window of the paper. The vision tower is omitted from encoding, so overheads are overestimated; only for graphs of the
vision tower, whose blocks have their original width too, it is included.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from transformers import SiglipVisionConfig
from transformers.models.siglip.modeling_siglip import SiglipEncoderLayer

import anchorfold
from anchorfold.attention.graphs import GRAPHS, LayerView
from anchorfold.attention.layer_settings import PAPER, window_by_depth
from anchorfold.attention.signals import PropagatedAttention
from anchorfold.page import PageState
from benchmarks.overhead import RATIO, WIDTHS, Stack, Width, page_state, window_layers

BAR = 1.02


@dataclass(frozen=True)
class Tower:
    """Sizes of a vision tower.

    Args:
        intermediate: width of an MLP of two layers; 3/2 of that of a gated one, which has three.
        depth: number of blocks.
        full: number of blocks in which all patches of an image attend to each other.
        patches: patches per visual token.
        image: maximum patches per image.
        window: patches per window of the other blocks.
    """

    hidden: int
    heads: int
    intermediate: int
    depth: int
    full: int
    patches: int
    image: int
    window: int = 64

    def block(self) -> SiglipEncoderLayer:
        """Create a block with random weights."""
        config = SiglipVisionConfig(
            hidden_size=self.hidden, intermediate_size=self.intermediate, num_attention_heads=self.heads
        )
        config._attn_implementation = "sdpa"
        return SiglipEncoderLayer(config).eval().requires_grad_(False)

    def views(self, n: int) -> list[LayerView]:
        """Return attention inputs of one block for the images of a page of `n` visual tokens."""
        side = min(self.image, n * self.patches)
        shape = (self.heads, side, self.hidden // self.heads)
        return [
            LayerView(torch.randn(shape), torch.randn(shape), shape[-1] ** -0.5, torch.arange(side))
            for _ in range(n * self.patches // side)
        ]


TOWERS = {
    "colpali": Tower(1152, 16, 4304, depth=27, full=27, patches=1, image=1024),
    "colqwen2.5": Tower(1280, 16, 5130, depth=32, full=4, patches=4, image=4096),
    "nemotron": Tower(1536, 16, 6144, depth=40, full=40, patches=4, image=1024),
}


@dataclass(frozen=True)
class CapturedView:
    """Signal that stores the attention inputs of its layer."""

    layer: int
    views: ClassVar[list[LayerView]] = []

    @classmethod
    def measure(cls, requests: Sequence[CapturedView], view: LayerView) -> dict[CapturedView, Tensor]:
        """Store the view; the values are not used."""
        cls.views.append(view)
        return dict.fromkeys(requests, torch.zeros(len(view.visual)))


def measure_graph(views: Sequence[LayerView], graph: str, steps: int) -> None:
    """Compute the scores of a graph for one layer."""
    for view in views:
        PropagatedAttention.measure([PropagatedAttention(0, steps, graph)], view)


def measure_graphs(width: Width, n: int, rounds: int, causal: bool) -> dict[str, float]:
    """Return the time of AnchorFold relative to encoding alone at full depth, for every graph."""
    stack = Stack(width, 1, n, causal)
    settings, tower = PAPER[width.family], TOWERS[width.family]
    stack.tapped(CapturedView)  # type: ignore[arg-type]
    views = {False: [CapturedView.views.pop()], True: tower.views(n)}
    block, side = tower.block(), views[True][0].query.shape[1]
    patches = torch.randn(len(views[True]), side, tower.hidden)
    windows = patches.view(-1, tower.window, tower.hidden)
    state, local = page_state(stack, "anchorfold")
    tasks: dict[str, Callable[[], object]] = {
        "plain": stack.encode,
        "block": partial(block, patches, attention_mask=None),
        "windowed block": partial(block, windows, attention_mask=None),
        "compress": lambda: anchorfold.AnchorFold(ratio=RATIO).compress(
            PageState(state.hidden, state.project, state.signals), local
        ),
    }
    tasks |= {name: partial(measure_graph, views[kind.tower], name, settings.steps) for name, kind in GRAPHS.items()}
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            began = time.process_time()
            task()
            times[name].append(time.process_time() - began)
    medians = {name: statistics.median(values) for name, values in times.items()}
    language = medians["plain"] * settings.layers
    vision = medians["block"] * tower.full + medians["windowed block"] * (tower.depth - tower.full)
    first, last = window_by_depth(tower.full)
    layers = {False: window_layers("anchorfold", settings), True: last - first + 1}
    print(f"{width.family}: language layers {language:.1f} s, vision tower {vision:.1f} s", file=sys.stderr, flush=True)
    return {
        name: 1 + (medians[name] * layers[kind.tower] + medians["compress"]) / (language + vision * kind.tower)
        for name, kind in GRAPHS.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=768, help="visual tokens of the page")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=[w.family for w in WIDTHS], help="one backbone")
    parser.add_argument("--causal", action="store_true", help="language layers with a causal mask")
    arguments = parser.parse_args()
    widths = [w for w in WIDTHS if arguments.only in (None, w.family)]
    torch.set_num_threads(1)
    with torch.no_grad():
        ratios = {w.family: measure_graphs(w, arguments.tokens, arguments.rounds, arguments.causal) for w in widths}
    attention = "causal" if arguments.causal else "bidirectional"
    print(f"AnchorFold relative to encoding alone, N = {arguments.tokens}, ratio {RATIO}, {attention} layers, float32")
    print("| graph | " + " | ".join(ratios) + " |\n" + "|---" * (len(ratios) + 1) + "|")
    for name in GRAPHS:
        print(f"| `{name}` | " + " | ".join(f"{values[name]:.4f}" for values in ratios.values()) + " |")
    worst = max(value for values in ratios.values() for value in values.values())
    print(f"bar: below {BAR}: worst {worst:.4f}, {'met' if worst < BAR else 'MISSED'}")
    sys.exit(not worst < BAR)


if __name__ == "__main__":
    main()
