"""The last layer and the projection alone, on pages whose states before them are computed once and stored.

    python -m training.nano.head DATA_FOLDER FONT_FOLDER --start WEIGHTS --pages 400 --steps 600

A step costs about a tenth of one of the whole model, and the attention that chooses anchors (layers 3 and 4) stays as
it is: the cheapest way to teach patches not to pretend. Writes DATA_FOLDER/head.pt, which `export --stage head` reads.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from anchorfold.backbones.nano.model import NanoModel, patch_positions
from anchorfold.focus import layer_score, propagate
from training.nano import checkpoint, losses
from training.nano.candidates import WordPool, folding_losses, word_losses
from training.nano.examples import Example, WordPieces, word_values
from training.nano.matching import FOCUS_LAYERS, share_of_rate
from training.nano.stages import STAGES, load_start, recorded

RATE = 3e-4
FOCUS_DEPTH = 2


@dataclass
class StoredPage:
    """An example without pixels, its `states (registers + N, d)` before the last layer, its centrality `(N,)`."""

    example: Example
    states: Tensor
    score: Tensor


@torch.no_grad()
def store_page(model: NanoModel, example: Example, half: bool) -> StoredPage:
    """Run all layers but the last on one piece."""
    stage, r = STAGES["pages"], model.config.registers
    grid = patch_positions(stage.height // 16, stage.width // 32)
    states: list[Tensor] = []
    listening = model.layers[-1].register_forward_pre_hook(lambda _module, inputs: states.append(inputs[0][0]))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        model.encode([model.stem(example.pixels[None])[0][example.kept]], [grid[example.kept]])
    listening.remove()
    graphs = [(q[0, :, r:], k[0, :, r:]) for q, k in (recorded(model, i) for i in FOCUS_LAYERS)]
    score = torch.stack([layer_score(propagate(losses.attention(q, k), FOCUS_DEPTH)) for q, k in graphs]).mean(0)
    example.pixels, example.characters = torch.zeros(0), []
    return StoredPage(example, states[0].to(torch.float16).clone(), score)


def store_pages(model: NanoModel, data: Path, fonts: Path, pages: int, seed: int, half: bool) -> list[StoredPage]:
    """Make the pages that are missing in DATA_FOLDER/head, a file each, and read them all."""
    stage, folder = STAGES["pages"], data / "head"
    folder.mkdir(parents=True, exist_ok=True)
    source = WordPieces(data, fonts, stage.height, stage.width, stage.real, stage.blank_kept, seed)
    stored = []
    for number in range(pages):
        path = folder / f"{seed}-{number:05}.pt"
        if not path.exists():
            page = store_page(model, source.sample(random.Random(f"{seed}/{number}")), half)
            checkpoint.save(path, example=vars(page.example), states=page.states, score=page.score)
            if number % 25 == 24:
                print(f"{number + 1} pages stored", flush=True)
        state = checkpoint.load(path)
        assert state is not None
        page = StoredPage(Example(**state["example"]), state["states"], state["score"])
        if len(page.example.pairs):
            stored.append(page)
    return stored


def last_layer(model: NanoModel, page: StoredPage) -> Tensor:
    """`(N, d)` final states of a stored page's patches."""
    stage, r = STAGES["pages"], model.config.registers
    grid = patch_positions(stage.height // 16, stage.width // 32)[page.example.kept]
    turns = model.turns(F.pad(grid, (0, 0, r, 0)))
    cos, sin = (t[None, None] for t in turns)
    return model.norm(model.layers[-1](page.states.float()[None], cos, sin, None))[0, r:]


def batch_loss(
    model: NanoModel, pool: WordPool, weights: dict[str, float], batch: list[StoredPage], rng: random.Random
) -> tuple[Tensor, dict[str, float]]:
    """As in stage 3, without what the last layer cannot change."""
    stage, examples = STAGES["pages"], [p.example for p in batch]
    states = [last_layer(model, p) for p in batch]
    vectors = [F.normalize(model.projection(s), dim=-1) for s in states]
    candidates = pool.draw(examples, rng)
    parts, right = word_losses(vectors, examples, candidates)
    patches = stage.height // 16 * (stage.width // 32)
    ratio = rng.choice([0.05, 0.1, 0.2])
    folded = [
        losses.folded(s, p.score, min(1.0, ratio * patches / len(s)), model.projection)
        for s, p in zip(states, batch, strict=True)
    ]
    values = [word_values(e, weights) for e in examples]
    page, lost = folding_losses(vectors, folded, examples, values, candidates)
    loss = parts["read"] + 0.5 * parts["find"] + stage.pretence * (parts["pretence"] + 0.5 * parts["paper"])
    loss = loss + stage.page_loss * page + stage.retention * lost
    report = {name: part.item() for name, part in (parts | {"page": page, "lost": lost}).items()}
    return loss, {"right": right, **report}


def train(
    data: Path, fonts: Path, start: Path, pages: int, steps: int, seed: int = 1, half: bool = False, every: int = 25
) -> list[dict[str, float]]:
    """Train or resume; returns the curve."""
    model, index, weights = load_start(data, start)
    model.eval()
    stored = store_pages(model, data, fonts, pages, seed, half)
    model.requires_grad_(False)
    for part in (model.layers[-1], model.norm, model.projection):
        part.requires_grad_(True)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, RATE, weight_decay=0.02, betas=(0.9, 0.98))
    step, curve, reports, began = 0, [], [], time.time()
    if (state := checkpoint.load(data / "head.pt")) is not None:
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimiser"])
        step, curve = state["step"], state["curve"]
    pool, rng = WordPool(model, index), random.Random(f"{seed}/{step}")
    while step < steps:
        loss, report = batch_loss(model, pool, weights, rng.sample(stored, min(2, len(stored))), rng)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for group in optimiser.param_groups:
            group["lr"] = RATE * share_of_rate(step, steps)
        optimiser.step()
        step += 1
        reports.append({"loss": loss.item(), **report})
        if step % every == 0 or step == steps:
            mean = {k: float(np.mean([r[k] for r in reports if k in r])) for k in dict.fromkeys(chain(*reports))}
            curve.append({"step": step, **mean})
            print(
                f"step {step}  "
                + "  ".join(f"{k} {v:.3f}" for k, v in mean.items())
                + f"  {(time.time() - began) / len(reports):.2f} s/step",
                flush=True,
            )
            reports, began = [], time.time()
            checkpoint.save(data / "head.pt", model=model.state_dict(), optimiser=optimiser.state_dict(), step=step,
                            curve=curve, still=model.config.rope_still)  # fmt: skip
    return curve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--start", type=Path, required=True, help="an exported model, such as the shipped weights")
    parser.add_argument("--pages", type=int, default=400)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bfloat16", action="store_true", help="for the stored states; try first whether it is faster")
    arguments = parser.parse_args()
    train(
        arguments.data,
        arguments.fonts,
        arguments.start,
        arguments.pages,
        arguments.steps,
        arguments.seed,
        arguments.bfloat16,
    )


if __name__ == "__main__":
    main()
