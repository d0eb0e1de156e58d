"""Train the last layer and the projection on stored states of the layer before.

    python -m training.nano.head DATA_FOLDER FONT_FOLDER --start WEIGHTS --pages 400 --steps 600

A step takes about a tenth of the time of the full model, and the attention that selects anchors (layers 3 and 4) does
not change. Writes DATA_FOLDER/head.pt, which `export --stage head` reads.
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

from anchorfold.backbones.nano.model import NanoModel, list_positions
from anchorfold.core.focus import layer_score, propagate
from training.nano import checkpoint, losses
from training.nano.candidates import CandidateSampler, compute_folding_losses, compute_word_losses
from training.nano.examples import Example, LabelledCrops, estimate_query_weights
from training.nano.matching import FOCUS_LAYERS, rate_factor
from training.nano.stages import STAGES, captured_attention, load_start

RATE = 3e-4
FOCUS_DEPTH = 2


@dataclass
class StoredPage:
    """Example without pixels, its `states (registers + n, d)` before the last layer and its centrality `score (n,)`."""

    example: Example
    states: Tensor
    score: Tensor


@torch.no_grad()
def store_page(model: NanoModel, example: Example, bfloat16: bool) -> StoredPage:
    """Run all layers except the last on one crop."""
    stage, r = STAGES["pages"], model.config.registers
    grid = list_positions(stage.height // 16, stage.width // 32)
    states: list[Tensor] = []
    hook = model.layers[-1].register_forward_pre_hook(lambda _module, inputs: states.append(inputs[0][0]))
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        model.encode([model.stem(example.pixels[None])[0][example.patches]], [grid[example.patches]])
    hook.remove()
    graphs = [(q[0, :, r:], k[0, :, r:]) for q, k in (captured_attention(model, i) for i in FOCUS_LAYERS)]
    score = torch.stack([layer_score(propagate(losses.compute_attention(q, k), FOCUS_DEPTH)) for q, k in graphs]).mean(
        0
    )
    example.pixels, example.characters = torch.zeros(0), []
    return StoredPage(example, states[0].to(torch.float16).clone(), score)


def store_pages(model: NanoModel, data: Path, fonts: Path, pages: int, seed: int, bfloat16: bool) -> list[StoredPage]:
    """Compute pages that are missing in DATA_FOLDER/head, one file per page, and load them all."""
    stage, folder = STAGES["pages"], data / "head"
    folder.mkdir(parents=True, exist_ok=True)
    source = LabelledCrops(data, fonts, stage.height, stage.width, stage.real_share, stage.blank_share, seed)
    stored = []
    for number in range(pages):
        path = folder / f"{seed}-{number:05}.pt"
        if not path.exists():
            page = store_page(model, source.sample(random.Random(f"{seed}/{number}")), bfloat16)
            checkpoint.save(path, example=vars(page.example), states=page.states, score=page.score)
            if number % 25 == 24:
                print(f"{number + 1} pages stored", flush=True)
        state = checkpoint.load(path)
        assert state is not None
        page = StoredPage(Example(**state["example"]), state["states"], state["score"])
        if len(page.example.pairs):
            stored.append(page)
    return stored


def run_last_layer(model: NanoModel, page: StoredPage) -> Tensor:
    """Compute the final states `(n, d)` of a stored page's patches."""
    stage, r = STAGES["pages"], model.config.registers
    grid = list_positions(stage.height // 16, stage.width // 32)[page.example.patches]
    cos, sin = (t[None, None] for t in model.compute_rotary(F.pad(grid, (0, 0, r, 0))))
    return model.norm(model.layers[-1](page.states.float()[None], cos, sin, None))[0, r:]


def batch_loss(
    model: NanoModel, sampler: CandidateSampler, weights: dict[str, float], batch: list[StoredPage], rng: random.Random
) -> tuple[Tensor, dict[str, float]]:
    """Compute the losses of the stage `pages` that depend on the last layer."""
    stage, examples = STAGES["pages"], [p.example for p in batch]
    states = [run_last_layer(model, p) for p in batch]
    vectors = [F.normalize(model.projection(s), dim=-1) for s in states]
    candidates = sampler.sample(examples, rng)
    parts, accuracy = compute_word_losses(vectors, examples, candidates)
    patches = stage.height // 16 * (stage.width // 32)
    ratio = rng.choice([0.05, 0.1, 0.2])
    folded = [
        losses.fold_page(s, p.score, min(1.0, ratio * patches / len(s)), model.projection)
        for s, p in zip(states, batch, strict=True)
    ]
    values = [estimate_query_weights(e, weights) for e in examples]
    page, retention = compute_folding_losses(vectors, folded, examples, values, candidates)
    loss = parts["reading"] + 0.5 * parts["localization"]
    loss = loss + stage.absent_weight * (parts["absent"] + 0.5 * parts["background"])
    loss = loss + stage.page_weight * page + stage.retention_weight * retention
    report = {name: part.item() for name, part in (parts | {"page": page, "retention": retention}).items()}
    return loss, {"accuracy": accuracy, **report}


def train(
    data: Path, fonts: Path, start: Path, pages: int, steps: int, seed: int = 1, bfloat16: bool = False, every: int = 25
) -> list[dict[str, float]]:
    """Train or resume; return the training curve."""
    model, vocabulary, weights = load_start(data, start)
    model.eval()
    stored = store_pages(model, data, fonts, pages, seed, bfloat16)
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
    sampler, rng = CandidateSampler(model, vocabulary), random.Random(f"{seed}/{step}")
    while step < steps:
        loss, report = batch_loss(model, sampler, weights, rng.sample(stored, min(2, len(stored))), rng)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        for group in optimiser.param_groups:
            group["lr"] = RATE * rate_factor(step, steps)
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
                            curve=curve, config={})  # fmt: skip
    return curve


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("fonts", type=Path)
    parser.add_argument("--start", type=Path, required=True, help="exported model, such as the shipped weights")
    parser.add_argument("--pages", type=int, default=400)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bfloat16", action="store_true", help="compute stored states in bfloat16")
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
